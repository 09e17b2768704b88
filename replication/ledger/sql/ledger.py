"""The ledger over SQL: SQLite for one host, PostgreSQL for many, behind the same code.

``initialise`` creates a ledger, ``open_ledger`` opens it. The parts are in ``parts``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING

from sqlalchemy import select

from replication.core.ids import ClusterId
from replication.core.roles import FIRST_ROLE, RoleState
from replication.errors import ConfigError, VersionError
from replication.ledger.base import Ledger
from replication.ledger.batches import Batches
from replication.ledger.bootstraps import Bootstraps
from replication.ledger.commit_steps import CommitStepStore
from replication.ledger.derivations import Derivations
from replication.ledger.drills import Drills
from replication.ledger.files import FileRecords
from replication.ledger.grants import Grants
from replication.ledger.landing import LandingRecords
from replication.ledger.registration import Registration
from replication.ledger.replay import Replay
from replication.ledger.rules import Rules
from replication.ledger.salvage import Salvage
from replication.ledger.sending import Sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.schema.metadata import SCHEMA_VERSION, create_all
from replication.ledger.sql.store.keys import KeyCache
from replication.ledger.sql.store.last_seen import LastSeen
from replication.ledger.sql.store.store import BUSY_TIMEOUT_S, SqlStore
from replication.ledger.successions import SuccessionRecords
from replication.ledger.tables import TableRecords
from replication.ledger.terms import Terms
from replication.ledger.time import Time

if TYPE_CHECKING:
    from replication.ledger.sql.queries.rules import RuleCache

    _Once = cached_property
else:
    _making = threading.RLock()

    class _Once(cached_property):
        """Computed once, whichever threads ask first; since Python 3.12 ``cached_property`` does not see to that."""

        def __get__(self, instance, owner=None):
            with _making:
                return super().__get__(instance, owner)


_used: dict[tuple[str, float], SqlStore] = {}  # closed: each is for the next who opens it


class SqlLedger:
    """``Ledger`` over one store. Methods may be called from any thread; writes are serialised.

    Each part is loaded when it is first used: all of them together take longer than most commands run.
    """

    def __init__(self, store: SqlStore, cluster: ClusterId, former: tuple[ClusterId, ...] = ()) -> None:
        """For an initialised ``store`` of ``cluster``, whose earlier ids are ``former``, oldest first."""
        self._store = store
        self._names, self._last_seen = KeyCache(store), LastSeen()
        self.cluster = cluster
        self.former = former

    @_Once
    def _rules_cache(self) -> RuleCache:
        from replication.ledger.sql.queries.rules import RuleCache

        return RuleCache()

    @_Once
    def terms(self) -> Terms:
        from replication.ledger.sql.parts.terms import SqlTerms

        return SqlTerms(self._store)

    @_Once
    def rules(self) -> Rules:
        from replication.ledger.sql.parts.rules import SqlRules

        return SqlRules(self._store, self._rules_cache)

    @_Once
    def tables(self) -> TableRecords:
        from replication.ledger.sql.parts.tables import SqlTableRecords

        return SqlTableRecords(self._store, self._rules_cache)

    @_Once
    def files(self) -> FileRecords:
        from replication.ledger.sql.parts.files import SqlFileRecords
        from replication.ledger.sql.queries.status_cache import StatusCache

        return SqlFileRecords(self._store, self._rules_cache, StatusCache(self._rules_cache), self.cluster)

    @_Once
    def registration(self) -> Registration:
        from replication.ledger.sql.parts.registration import SqlRegistration

        return SqlRegistration(self._names, self.cluster, self._last_seen)

    @_Once
    def landing(self) -> LandingRecords:
        from replication.ledger.sql.parts.landing import SqlLandingRecords

        return SqlLandingRecords(self._store, self._names, self._last_seen)

    @_Once
    def grants(self) -> Grants:
        from replication.ledger.sql.parts.grants import SqlGrants

        return SqlGrants(self._store)

    @_Once
    def salvage(self) -> Salvage:
        from replication.ledger.sql.parts.salvage import SqlSalvage

        return SqlSalvage(self._store, self._names, self._rules_cache)

    @_Once
    def batches(self) -> Batches:
        from replication.ledger.sql.parts.batches import SqlBatches

        return SqlBatches(self._store)

    @_Once
    def bootstraps(self) -> Bootstraps:
        from replication.ledger.sql.parts.bootstraps import SqlBootstraps

        return SqlBootstraps(self._store, self._names, self.cluster, self._rules_cache)

    @_Once
    def derivations(self) -> Derivations:
        from replication.ledger.sql.parts.derivations import SqlDerivations

        return SqlDerivations(self._store)

    @_Once
    def drills(self) -> Drills:
        from replication.ledger.sql.parts.drills import SqlDrills

        return SqlDrills(self._store)

    @_Once
    def steps(self) -> CommitStepStore:
        from replication.ledger.sql.parts.commits import SqlCommitSteps

        return SqlCommitSteps(self._store)

    @_Once
    def replay(self) -> Replay:
        from replication.ledger.sql.parts.replay import SqlReplay

        return SqlReplay(self._store, self._names)

    @_Once
    def time(self) -> Time:
        from replication.ledger.sql.parts.time import SqlTime

        return SqlTime(self._store, self.cluster)

    @_Once
    def successions(self) -> SuccessionRecords:
        from replication.ledger.sql.parts.successions import SqlSuccessions

        return SqlSuccessions(self._store)

    @_Once
    def sending(self) -> Sending:
        from replication.ledger.sql.parts.sending import SqlSending

        return SqlSending(self._store)

    def decided(self) -> object | None:
        return self._store.decided()

    def close(self) -> None:
        self._store.close()


def initialise(url: str, cluster: ClusterId, role: RoleState = FIRST_ROLE) -> None:
    """Create an empty ledger for ``cluster`` at ``url``. An existing ledger of the same cluster is left as it is.

    ``role`` is the cluster's first role.

    Raises:
        ConfigError: the ledger at ``url`` belongs to another cluster, or another incarnation of it.
        VersionError: a newer walship created it.
    """
    with closing(SqlStore(url)) as store:
        prepare(store, cluster, role)
        _forget_dropped(store)


def _forget_dropped(store: SqlStore) -> None:
    """Remove definitions of dropped tables, which a ``drop`` that was killed left: a rebuilt ledger would have them."""
    if store.path is not None:
        from replication.ledger.sql.store.definition_files import DefinitionFiles  # deferred: it loads Arrow

        dropped = store.rows(select(schema.tables.c.uuid).where(schema.tables.c.dropped))
        DefinitionFiles(store.path).forget_tables([row.uuid for row in dropped])


def prepare(store: SqlStore, cluster: ClusterId, role: RoleState = FIRST_ROLE) -> None:
    """Do what ``initialise`` does, on an open store."""
    from replication.ledger.sql.schema.touched import install

    with store.write() as connection:
        create_all(connection)
        install(connection)
        kept = {row.name: row.value for row in connection.execute(schema.meta.select())}
        if not kept:
            rows = {"schema": str(SCHEMA_VERSION), "cluster": str(cluster)}
            if role != FIRST_ROLE:
                rows["role"] = role.encode().decode()
            connection.execute(schema.meta.insert(), [{"name": name, "value": value} for name, value in rows.items()])
            return
    _check(kept, cluster, store)


def open_ledger(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Ledger:
    """Open the ledger at ``url``: a SQLAlchemy URL, or the path of a SQLite file.

    Raises:
        ConfigError: there is no ledger.
        VersionError: a newer walship created it.
    """
    return _opened(_used.pop(key) if (key := (url, busy_timeout_s)) in _used else SqlStore(*key))


def use_before_forks(url: str, busy_timeout_s: float, use: Callable[[Ledger], object]) -> None:
    """Open a ledger of SQLite, ``use`` and close it. Who opens it next, in a fork, finds those statements compiled."""
    store = SqlStore(url, busy_timeout_s)
    if store.path is not None:
        with closing(_opened(store)) as ledger:
            use(ledger)
        _used[url, busy_timeout_s] = store


def _opened(store: SqlStore) -> SqlLedger:
    try:
        store.check_present()
        kept = read_meta(store)
        return SqlLedger(store, _check(kept, None, store), former_ids(kept))
    except BaseException:
        store.close()
        raise


def read_meta(store: SqlStore) -> dict[str, str]:
    """The rows of ``meta``; none when there is no ledger."""
    with store.read() as connection:
        if not connection.dialect.has_table(connection, schema.meta.name):
            return {}
        return {row.name: row.value for row in connection.execute(schema.meta.select())}


def former_ids(kept: Mapping[str, str]) -> tuple[ClusterId, ...]:
    """The former ids of a ledger's cluster, oldest first, from the rows of ``meta``."""
    return tuple(ClusterId.parse(each) for each in json.loads(kept.get("former") or "[]"))


def _check(kept: dict[str, str], cluster: ClusterId | None, store: SqlStore) -> ClusterId:
    where = store.url.render_as_string(hide_password=True)
    if not kept:
        raise ConfigError(f"there is no ledger at {where}", "Start the cluster, which creates it: walship up")
    if int(kept["schema"]) > SCHEMA_VERSION:
        raise VersionError(
            f"the ledger at {where} has schema version {kept['schema']}, newer than {SCHEMA_VERSION}",
            "Upgrade walship here first",
        )
    if int(kept["schema"]) < SCHEMA_VERSION:
        rebuild = "; or move the ledger away and run walship rebuildledger, which makes one from the files and tables"
        raise VersionError(
            f"the ledger at {where} has schema version {kept['schema']}, of before the first release",
            f"Begin anew with walship init DIR{rebuild if store.is_sqlite else ', and an empty database'}",
        )
    owner = ClusterId.parse(kept["cluster"])
    if cluster is not None and cluster != owner:
        raise ConfigError(
            f"the ledger at {where} belongs to {owner}, not to {cluster}",
            "Point ledger.url at this cluster's own ledger; after a restore: walship reincarnate",
        )
    return owner
