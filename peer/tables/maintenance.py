"""Maintenance: expire old snapshots, merge small files, and delete unneeded changes, tombstones and files.

Maintenance adds no rows, so replay's compare-and-swap ignores its commits. It keeps everything that a fold, a hold or a
late version may still need.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from peer.tables.commit_metadata import CommitMetadata
from peer.tables.latest import Folded, MergeQuery, show_latest
from replication import log
from replication.core.definition.aging import REMOVED_LATER_US, horizon, longest_history_s
from replication.core.definition.schema import TableSpec
from replication.core.phase import Phase
from replication.core.routes.bootstrap import Purged
from replication.errors import CommitConflictError, EngineLostError
from replication.files.owner import is_gone
from replication.ledger.base import Ledger
from replication.ledger.drills import DRILL_PREFIX
from replication.tables.base import DUCKDB, History, Snapshot, Tables
from replication.tables.layout import CHANGES, TOMBSTONES, layouts

SNAPSHOTS_MAX = 150
SNAPSHOT_KEEP_US = 300_000_000
SNAPSHOT_KEEP_BUSY_US = 10_000_000
#: How long a data file that no commit names is kept.
ORPHAN_AGE_US = 3_600_000_000
#: Prefix of tags that keep removed data files for readers of earlier snapshots; the time of removal follows.
SPARED_TAG = "walship_spared_"
_SNAPSHOTS_AHEAD = 1000
_WORTH_EXPIRING = 50
_KEEP = 20
_FILES_TO_COMPACT = 48
_CONTROL_ROWS = 50
_CELL_SLACK_US = 3_600_000_000
#: Prefix of a bootstrap's snapshot tag; the number of the bootstrap's file follows.
HOLD = "walship_bootstrap_"
_log = log.get(__name__)


def tidy(
    tables: Tables, ledger: Ledger, spec: TableSpec, now: int, compacted: MutableMapping[str, int | None] | None = None
) -> None:
    """Compact one walship table's Iceberg tables and expire their snapshots, where due; cheap when not.

    Also releases the snapshots of killed bootstraps, whose files no process writes any more, and of drills that ended
    or were killed. ``compacted`` has for each Iceberg table the snapshot that this process compacted last, even if no
    file was worth it. ``now`` is in microseconds since 1970.

    Raises:
        StorageError: a file to be compacted is missing or damaged (Spark has other errors). Snapshots expire before.
    """
    compacted = {} if compacted is None else compacted
    failed: Exception | None = None
    for layout in layouts(spec):
        history = tables.history(layout.name)
        for tag in _left_behind(ledger, history):
            tables.untag(layout.name, tag)
            _log.info("bootstrap_hold_released", table=layout.name, tag=tag)
        for tag in _of_ended_drills(ledger, history, now):
            tables.untag(layout.name, tag)
            _log.info("drill_tag_released", table=layout.name, tag=tag)
        if _small_files(history, compacted.get(layout.name)) >= _FILES_TO_COMPACT:
            try:
                files = tables.compact(layout.name, _FILES_TO_COMPACT // 2)
                compacted[layout.name] = history.current
                _log.info("compacted", table=layout.name, files=files)
            except CommitConflictError as error:  # expire snapshots anyway, or their number would grow
                _log.info("not_compacted", table=layout.name, reason=error.what)
            except EngineLostError:
                raise
            except Exception as error:  # of a damaged file, as the engine says it
                failed = error
            history = tables.history(layout.name)
        for tag in history.tags:
            at = tag.removeprefix(SPARED_TAG)
            if at != tag and at.isdecimal() and int(at) < now - SNAPSHOT_KEEP_US:
                tables.untag(layout.name, tag)
        until, named = _expire_before(history, now), set(history.tags.values())
        old = sum(1 for s in history.snapshots.values() if s.at < until and s.id not in named)
        if min(old, len(history.snapshots) - _KEEP) >= _WORTH_EXPIRING:
            _keep_removed_files(tables, layout.name, history, now)
            tables.expire(layout.name, until, _KEEP)
            left = len(tables.history(layout.name).snapshots)
            _log.info("expired", table=layout.name, snapshots=len(history.snapshots) - left)
    if failed is not None:
        raise failed


def _expire_before(history: History, now: int) -> int:
    """Return the time before which snapshots expire. Each makes commits slower and the metadata larger."""
    ahead = [snapshot.at for snapshot in history.snapshots.values() if snapshot.at > now]
    if len(ahead) > _SNAPSHOTS_AHEAD:  # the clock was set back
        return max(ahead) + 1000
    return now - (SNAPSHOT_KEEP_US if len(history.snapshots) <= SNAPSHOTS_MAX else SNAPSHOT_KEEP_BUSY_US)


def _keep_removed_files(tables: Tables, name: str, history: History, now: int) -> None:
    """Keep data files that recent snapshots removed, by tagging the snapshot before each of them.

    Running reads have planned their files already, so the snapshots in between may expire.
    """
    for snapshot in history.snapshots.values():
        before, tag = history.snapshots.get(snapshot.parent or 0), f"{SPARED_TAG}{snapshot.at}"
        is_recent = snapshot.at >= now - SNAPSHOT_KEEP_US and tag not in history.tags
        if is_recent and before is not None and _removes_files(snapshot):
            tables.tag(name, tag, before.id)


def _removes_files(snapshot: Snapshot) -> bool:
    removed = ("deleted-data-files", "removed-delete-files")
    return snapshot.operation in ("replace", "delete") or any(name in snapshot.summary for name in removed)


def _left_behind(ledger: Ledger, history: History) -> list[str]:
    holds = [tag for tag in history.tags if tag.startswith(HOLD)]
    if not holds:
        return []
    # read after the tags, since a bootstrap creates its file before its tag
    files = [wanted.file for wanted in ledger.bootstraps.wanted()]
    written = {f"{HOLD}{file.file.number}" for file in files if file is not None and not file.closed}
    return [tag for tag in holds if tag not in written]


def _of_ended_drills(ledger: Ledger, history: History, now: int) -> list[str]:
    tags = [tag for tag in history.tags if tag.startswith(DRILL_PREFIX)]
    if not tags:
        return []
    # read after the tags, since a drill is stored before its tags are
    held = {drill.tag for drill in ledger.drills.all() if drill.holds_tags(now, is_gone)}
    return [tag for tag in tags if tag not in held]


def remove_orphans(tables: Tables, spec: TableSpec, now: int) -> None:
    """Delete data files of replay and folds that were killed before they committed, ``ORPHAN_AGE_US`` later."""
    for layout in layouts(spec):
        if files := tables.remove_orphans(layout.name, now - ORPHAN_AGE_US):
            _log.info("orphans_removed", table=layout.name, files=files)


def drop_scratch(tables: Tables, ledger: Ledger, now: int) -> None:
    """Drop what probes of drills wrote that were killed, or whose time is up."""
    running = {drill.tag for drill in ledger.drills.all() if drill.is_open(now, is_gone)}
    for namespace in tables.drop_scratch(DRILL_PREFIX, running):
        _log.info("drill_scratch_dropped", namespace=namespace)


def trim(tables: Tables, ledger: Ledger, spec: TableSpec, now: int, retention_s: float) -> None:
    """Delete folded changes past their retention, tombstones that no late version can need, and expired rows.

    Keeps changes that are not folded, changes and tombstones of a hold, and the rows of the newest replay commit. A
    tombstone expires after ``history_s``, once every origin's replicated time has passed it and ``__changes`` has no
    older rows. Such rows are merged again when another engine's maintenance has expired the folds. ``__changes`` keeps
    folded rows for ``retention_s`` seconds, unless the table has ``changes_retention_s``. ``now`` is in microseconds
    since 1970.
    """
    if not spec.key:
        _age_off_keyless(tables, ledger, spec, now)
        return
    folded = Folded.newest(tables.history(spec.name))
    # never before their time by the clock here: commit times of a cluster with a fast clock may be a day ahead
    old = horizon(spec, min(folded.upto, folded.held_upto, now) - REMOVED_LATER_US)
    if old is not None:
        ledger.bootstraps.note_purged(spec.uuid, Purged(since=old))
        here, engine = (MergeQuery(spec, dialect, "", "", "", folded) for dialect in (DUCKDB, tables.dialect))
        _delete(tables, spec.name, here.too_old(old), engine.too_old(old))
    changes = tables.history(spec.name + CHANGES)
    newest = next((metadata.number for s in changes.chain() if (metadata := CommitMetadata.of(s)) is not None), 0)
    replay = min(folded.replay, folded.held_replay, newest - 1)
    changes_s = float(spec.setting("changes_retention_s") or retention_s)
    upto = min(folded.upto, folded.held_upto, now - int(changes_s * 1e6))
    aged = "" if old is None else f" or _commit <= {folded.upto} and coalesce(_ts, _commit) < {old}"
    gone = f"_replay <= {replay} and (_commit <= {upto} or _op < 0{aged})"
    for derivation in ledger.derivations.all():
        behind = derivation.source == spec.uuid and derivation.position >= 0
        unseen = f"{gone} and _op >= 0 and _replay > {derivation.position}"
        if behind and _there_is(tables, spec.name + CHANGES, unseen):
            ledger.derivations.renew(derivation.table)  # it compares all rows, since its changed keys are lost
    if _is_worth_trimming(tables, spec.name + CHANGES, gone):
        show_latest(tables, spec)  # who folded may have been killed before it
        _delete(tables, spec.name + CHANGES, gone)
    replicated = _replicated(ledger, spec)
    where = purgeable(spec, replicated, now)
    if _is_needed(ledger, spec) or not _there_is(tables, spec.name + TOMBSTONES, where):
        return
    with tables.scratch_duckdb() as connection:
        tables.attach(connection, "changes", spec.name + CHANGES)
        oldest_put = "select min(coalesce(_ts, _commit)) from changes where _op = 0"
        ((oldest,),) = connection.execute(oldest_put).fetchall()
    if oldest is not None:
        where = f"{where} and coalesce(_ts, _commit) < {oldest}"
    ledger.bootstraps.note_purged(spec.uuid, Purged(before=_purgeable_before(spec, replicated, now)))
    _delete(tables, spec.name + TOMBSTONES, where)


def _is_needed(ledger: Ledger, spec: TableSpec) -> bool:
    """Whether versions from before a delete may yet count: of lost writes, and of a peer that needs a bootstrap."""
    if any(frame.table == spec.uuid and not frame.discarded for frame in ledger.replay.quarantined()):
        return True
    return any(rule.table == spec.uuid and rule.phase is not Phase.LIVE for rule in ledger.rules.all())


def _age_off_keyless(tables: Tables, ledger: Ledger, spec: TableSpec, now: int) -> None:
    """Delete expired rows, except those of the newest replay commit, which records replay's position."""
    replicated = min((reached.t for reached in ledger.time.replicated(spec.uuid).values()), default=0)
    old = horizon(spec, min(replicated, now) - REMOVED_LATER_US)
    found = (CommitMetadata.of(snapshot) for snapshot in tables.history(spec.name).chain())
    newest = next((commit.number for commit in found if commit is not None), 0)
    if old is not None:
        _delete(tables, spec.name, f"_replay < {newest} and _commit < {old}")


def purgeable(spec: TableSpec, replicated: int, now: int) -> str:
    """Return the condition for a tombstone that no later arriving version can lose to.

    A version that has not arrived yet has a commit time above ``replicated``. On cell tables its user timestamp may be
    older by ``history_s``, and a little more when its append waited for the disk. ``replicated`` is the least
    replicated time of all origins; ``now`` is in microseconds since 1970, too.
    """
    history = longest_history_s(spec) * 1_000_000
    old = f"_commit <= {min(replicated, now - history)}"
    if spec.kind != "cell":
        return old
    return f"{old} and coalesce(_ts, _commit) <= {min(replicated, now) - history - _CELL_SLACK_US}"


def purged(ledger: Ledger, spec: TableSpec, now: int) -> Purged:
    """Return the timestamps for which the table may lack deletes that it has purged.

    It holds for snapshots of the table that were tagged before this call. It is empty where a frame was quarantined or
    discarded: rows of that frame are missing, but were not deleted. ``now`` is in microseconds since 1970.
    """
    if not spec.key or any(frame.table == spec.uuid for frame in ledger.replay.quarantined()):
        return Purged()
    by_now = Purged(horizon(spec, now) or 0, _purgeable_before(spec, _replicated(ledger, spec), now))
    return ledger.bootstraps.purged(spec.uuid).join(by_now)


def _purgeable_before(spec: TableSpec, replicated: int, now: int) -> int:
    """Return the timestamp below which a ``purgeable`` tombstone may have won over versions."""
    history = longest_history_s(spec) * 1_000_000
    slack = history + _CELL_SLACK_US
    newest = min(replicated, now - history) if spec.kind != "cell" else min(replicated, now) - slack
    return newest + 1 if newest > 0 else 0


def _replicated(ledger: Ledger, spec: TableSpec) -> int:
    return min((r.t for r in ledger.time.replicated(spec.uuid, every_origin=True).values()), default=0)


def _delete(tables: Tables, name: str, where: str, engine_where: str = "") -> None:
    """Delete the rows that match a condition, if there are any; arguments as of ``Tables.delete``."""
    if _there_is(tables, name, where):
        tables.delete(name, where, engine_where)
        _log.info("trimmed", table=name, where=where)


def _is_worth_trimming(tables: Tables, name: str, where: str) -> bool:
    """Whether changes match a condition, or many control rows: a start of replay leaves one, and Spark costs more."""
    with tables.scratch_duckdb() as connection:
        tables.attach(connection, "landed", name)
        counts = f"select count(*) filter (where _op >= 0), count(*) from landed where {where}"
        ((changes, rows),) = connection.execute(counts).fetchall()
    return bool(changes) or rows >= _CONTROL_ROWS


def _there_is(tables: Tables, name: str, where: str) -> bool:
    """Whether rows match a condition; asks DuckDB, since Spark would have to be started."""
    with tables.scratch_duckdb() as connection:
        tables.attach(connection, "landed", name)
        return bool(connection.execute(f"select 1 from landed where {where} limit 1").fetchall())


def _small_files(history: History, compacted: int | None) -> int:
    """Count the data and delete files added since the last rewrite or ``compacted``, from the summaries alone."""
    count = 0
    for snapshot in history.chain():
        if snapshot.operation == "replace" or snapshot.id == compacted:
            break
        count += int(snapshot.summary.get("added-data-files", 0)) + int(snapshot.summary.get("added-delete-files", 0))
    return count
