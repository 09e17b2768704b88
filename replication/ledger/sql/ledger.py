"""The ledger over SQL: SQLite for one host, PostgreSQL for many, behind the same code.

``initialise`` creates a ledger, ``open_ledger`` opens it. The parts are in ``parts``.
"""

from __future__ import annotations

from replication.core.ids import ClusterId
from replication.errors import ConfigError, VersionError
from replication.ledger.base import Ledger
from replication.ledger.sql.parts.batches import SqlBatches
from replication.ledger.sql.parts.bootstraps import SqlBootstraps
from replication.ledger.sql.parts.derivations import SqlDerivations
from replication.ledger.sql.parts.files import SqlFileRecords
from replication.ledger.sql.parts.landing import SqlLandingRecords
from replication.ledger.sql.parts.registration import SqlRegistration
from replication.ledger.sql.parts.replay import SqlReplay
from replication.ledger.sql.parts.rules import SqlRules
from replication.ledger.sql.parts.salvage import SqlSalvage
from replication.ledger.sql.parts.sending import SqlSending
from replication.ledger.sql.parts.tables import SqlTableRecords
from replication.ledger.sql.parts.terms import SqlTerms
from replication.ledger.sql.parts.time import SqlTime
from replication.ledger.sql.queries.rules import RuleCache
from replication.ledger.sql.queries.status_cache import StatusCache
from replication.ledger.sql.reincarnate import former_ids
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.schema.metadata import SCHEMA_VERSION, create_all
from replication.ledger.sql.schema.touched import install
from replication.ledger.sql.store.keys import KeyCache
from replication.ledger.sql.store.last_seen import LastSeen
from replication.ledger.sql.store.store import BUSY_TIMEOUT_S, SqlStore


class SqlLedger:
    """``Ledger`` over one store. Methods may be called from any thread; writes are serialised."""

    def __init__(self, store: SqlStore, cluster: ClusterId) -> None:
        """For an initialised ``store`` of ``cluster``."""
        names, rules_cache = KeyCache(), RuleCache()
        self._store = store
        self.cluster = cluster
        self.former = former_ids(store)
        self.terms = SqlTerms(store)
        self.rules = SqlRules(store, rules_cache)
        self.tables = SqlTableRecords(store, self.rules.follow)
        self.files = SqlFileRecords(store, rules_cache, StatusCache(rules_cache), cluster)
        last_seen = LastSeen()
        self.registration = SqlRegistration(store, names, cluster, last_seen)
        self.landing = SqlLandingRecords(store, names, last_seen)
        self.salvage = SqlSalvage(store, names, rules_cache)
        self.batches = SqlBatches(store)
        self.bootstraps = SqlBootstraps(store, names, cluster, rules_cache)
        self.derivations = SqlDerivations(store)
        self.replay = SqlReplay(store, names)
        self.time = SqlTime(store, cluster)
        self.sending = SqlSending(store)

    def close(self) -> None:
        """Close the connections."""
        self._store.close()


def initialise(url: str, cluster: ClusterId) -> None:
    """Create an empty ledger for ``cluster`` at ``url``. An existing ledger of the same cluster is left as it is.

    Raises:
        ConfigError: the ledger at ``url`` belongs to another cluster, or another incarnation of it.
        VersionError: a newer walship created it.
    """
    store = SqlStore(url)
    try:
        prepare(store, cluster)
    finally:
        store.close()


def prepare(store: SqlStore, cluster: ClusterId) -> None:
    """Do what ``initialise`` does, on an open store."""
    with store.write() as connection:
        create_all(connection)
        install(connection)
        kept = {row.name: row.value for row in connection.execute(schema.meta.select())}
        if not kept:
            rows = {"schema": str(SCHEMA_VERSION), "cluster": str(cluster)}
            connection.execute(schema.meta.insert(), [{"name": name, "value": value} for name, value in rows.items()])
            return
    _check(kept, cluster, store)


def open_ledger(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Ledger:
    """Open the ledger at ``url``: a SQLAlchemy URL, or the path of a SQLite file.

    Args:
        url: ``/data/ledger.db``, ``sqlite:////data/ledger.db`` or ``postgresql://user@host/database``.
        busy_timeout_s: how long a write waits for other processes.

    Raises:
        ConfigError: there is no ledger.
        VersionError: a newer walship created it.
    """
    store = SqlStore(url, busy_timeout_s)
    try:
        store.check_present()
        return SqlLedger(store, _check(_meta(store), None, store))
    except BaseException:
        store.close()
        raise


def _meta(store: SqlStore) -> dict[str, str]:
    with store.read() as connection:
        if not connection.dialect.has_table(connection, schema.meta.name):
            return {}
        return {row.name: row.value for row in connection.execute(schema.meta.select())}


def _check(kept: dict[str, str], cluster: ClusterId | None, store: SqlStore) -> ClusterId:
    where = store.url.render_as_string(hide_password=True)
    if not kept:
        raise ConfigError(f"there is no ledger at {where}", "Start the cluster, which creates it: walship up")
    if int(kept["schema"]) > SCHEMA_VERSION:
        raise VersionError(
            f"the ledger at {where} has schema version {kept['schema']}, newer than {SCHEMA_VERSION}",
            "Upgrade walship here first",
        )
    owner = ClusterId.parse(kept["cluster"])
    if cluster is not None and cluster != owner:
        raise ConfigError(
            f"the ledger at {where} belongs to {owner}, not to {cluster}",
            "Point ledger.url at this cluster's own ledger; after a restore: walship reincarnate",
        )
    return owner
