"""Derived tables on one cluster without Spark: what a hook drops or masks is in no frame."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from peer.derive import hooks
from peer.derive.progress import derived_here
from peer.tables.fold import merge_changes
from peer.tables.maintenance import trim
from replication.core.definition.alter import add_column, drop_column, rename_column, set_properties, widen_column
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import TableSpec
from replication.errors import HookError, ReplicationError, RequestError
from replication.ledger.base import FileKind
from tests.deriving import DerivingSite, Killed
from tests.frames_on_disk import registered
from tests.tables_made import uuids

pytestmark = pytest.mark.heavy

SCHEMA = pa.schema([("id", pa.int64()), ("who", pa.string()), ("n", pa.int32())])
PUBLIC = {"where": "n < 100", "null": "who"}
KILLS = ("write", "amid", "written", "wait", "settle")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DerivingSite]:
    with ExitStack() as stack:
        yield DerivingSite(tmp_path, "east", stack)


def people(name: str = "ops.people") -> TableSpec:
    return typed_table(name, SCHEMA, ["id"], uuids=uuids())


def rows(*given: tuple[int, str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], SCHEMA)


def shown(site: DerivingSite, spec: TableSpec) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in site.shown(spec)]


def derived_bytes(site: DerivingSite, spec: TableSpec) -> bytes:
    """Every frame of a table on this cluster's disk, payloads decoded."""
    found = b""
    for row in site.ledger.files.all():
        if row.kind is FileKind.WAL:
            content, frames = registered(row)
            for frame in frames:
                if frame.header.table == spec.uuid:
                    version = site.ledger.tables.schema(frame.header.schema, spec.uuid)
                    assert version is not None
                    payload = content[frame.payload_begin : frame.end]
                    batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(payload)), version.arrow)
                    found += repr(batch.to_pylist()).encode()
    return found


def test_rows_are_dropped_columns_masked_and_rows_that_no_longer_pass_deleted(site: DerivingSite) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    wal = site.wal()
    wal.append(spec, rows((1, "ann", 5), (2, "bob", 500), (3, "eve", 7)))
    site.catch_up()
    public = site.define("ops.public", "ops.people", "select", PUBLIC)
    assert public.uuid != spec.uuid and [c.name for c in public.columns] == SCHEMA.names
    site.derive(public)
    assert shown(site, public) == [(1, None, 5), (3, None, 7)]
    wal.append(spec, rows((1, "ann", 101), (2, "bob", 99), (4, "dan", 4), (777_000_777, "zoe", 1000)))
    wal.delete(spec, [{"id": 3}])
    site.derive(public)
    assert shown(site, public) == [(2, None, 99), (4, None, 4)]
    told = derived_bytes(site, public)
    assert b"'id': 4" in told, "the search finds what is there"
    assert b"777000777" not in told, "a key that never passed leaves no trace"
    assert not [name for name in (b"ann", b"bob", b"eve", b"dan", b"zoe") if name in told]


def test_a_round_without_a_change_for_the_derived_table_writes_nothing(site: DerivingSite) -> None:
    site.ledger.tables.create(spec := people())
    public = site.define("ops.public", "ops.people", "select", PUBLIC)
    wal = site.wal()
    wal.append(spec, rows((1, "ann", 5)))
    site.derive(public)
    written, before = site.batches, site.derivation(public)
    assert site.define("ops.public", hook="select", options=PUBLIC) and site.derivation(public) == before
    wal.append(spec, rows((1, "ann, renamed", 5)))
    assert site.derive(public) == 1
    assert (site.batches, len(site.versions(public))) == (written, 1)


def test_neither_a_late_older_version_nor_a_fold_changes_derived_rows(site: DerivingSite) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "select", PUBLIC)
    ahead, behind = site.wal("w0"), site.wal("w1")
    ahead.ahead_us = 10_000_000
    ahead.append(spec, rows((1, "ann", 5)))
    site.derive(public)
    for fold in (spec, public):
        site.fold(fold)
    behind.append(spec, rows((1, "ann", 6), (2, "bob", 6)))
    site.derive(public)
    assert shown(site, public) == [(1, None, 5), (2, None, 6)]
    site.fold(public)
    ahead.delete(spec, [{"id": 1}, {"id": 2}])
    site.fold(spec)
    site.derive(public)
    assert shown(site, public) == []


@pytest.mark.parametrize("where", KILLS)
@pytest.mark.parametrize("key", [["id"], []])
def test_killed_anywhere_each_row_is_derived_once(site: DerivingSite, where: str, key: list[str]) -> None:
    spec = typed_table("ops.people", SCHEMA, key, uuids=uuids())
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "select", PUBLIC)
    wal = site.wal()
    wal.append(spec, rows((1, "ann", 5), (2, "bob", 500)))
    site.derive(public)
    wal.append(spec, rows((3, "eve", 7), (4, "dan", 400)))
    site.catch_up()
    site.kill_at = where
    with pytest.raises(Killed):
        site.derive(public)
    wal.append(spec, rows((5, "fay", 9)))
    site.derive(public)
    assert shown(site, public) == [(1, None, 5), (3, None, 7), (5, None, 9)]
    assert len(site.versions(public)) == 3


@pytest.mark.parametrize("where", ["amid", "written"])
def test_a_large_step_is_written_whole_or_not_at_all(site: DerivingSite, where: str) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "select", {"null": "who"})
    wal = site.wal()
    for begin in (0, 40_000):
        ids = range(begin, begin + 40_000)
        wal.append(spec, pa.table({"id": ids, "who": ["x"] * 40_000, "n": [1] * 40_000}, SCHEMA))
    site.catch_up()
    site.kill_at = where
    with pytest.raises(Killed):
        site.derive(public)
    site.catch_up()
    assert len(site.shown(public)) in (0, 80_000)
    site.derive(public)
    assert len(site.versions(public)) == len(site.shown(public)) == 80_000


def test_a_hook_that_fails_lets_nothing_pass_and_says_why(site: DerivingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(options: object) -> hooks.Run:
        def run(given: pa.Table) -> pa.Table:
            if 13 in given.column("id").to_pylist():
                raise ValueError("13 is unlucky")
            return given

        return run

    monkeypatch.setattr(hooks, "BUILT_IN", {"strict": strict})
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "strict")
    wal = site.wal()
    wal.append(spec, rows((12, "a", 1)))
    site.derive(public)
    wal.append(spec, rows((13, "b", 1), (14, "c", 1)))
    with pytest.raises(HookError, match="strict failed: ValueError: 13 is unlucky"):
        site.derive(public)
    site.ledger.derivations.note_error(public.uuid, "13 is unlucky", 17)
    (told,) = derived_here(site.ledger, {s.uuid: s for s in site.ledger.tables.all()}, 20)
    assert (told.table, told.behind, told.error, told.error_since) == ("ops.public", 1, "13 is unlucky", 17)
    assert shown(site, public) == [(12, "a", 1)]
    wal.delete(spec, [{"id": 13}])
    site.derive(public)
    assert shown(site, public) == [(12, "a", 1), (14, "c", 1)]
    assert not site.derivation(public).error


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda t: t.set_column(0, "id", pa.array([9] * t.num_rows, pa.int64())),
            "a key that the source's rows do not",
        ),
        (lambda t: pa.concat_tables([t, t]), "a key twice"),
        (lambda t: t.set_column(2, "n", pa.array(["x"] * t.num_rows)), "'n' holds int32"),
        (lambda t: t.set_column(0, "id", pa.nulls(t.num_rows, pa.int64())), "key column id NULL"),
        (lambda t: 5, "returned int, not an Arrow table"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    site: DerivingSite, monkeypatch: pytest.MonkeyPatch, change: object, says: str
) -> None:
    def odd(options: object) -> hooks.Run:
        return lambda given: change(given) if given.num_rows else given  # type: ignore[operator]

    monkeypatch.setattr(hooks, "BUILT_IN", {"odd": odd})
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "odd")
    site.wal().append(spec, rows((1, "a", 1), (2, "b", 2)))
    with pytest.raises(HookError, match=says):
        site.derive(public)
    assert site.batches == 0


def test_tables_that_cannot_be_derived_are_refused_with_a_remedy(site: DerivingSite) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    for options, says in (
        ({"null": "id"}, "key column id"),
        ({"hash": "id", "salt": "s"}, "key column id"),
        ({"without": "id"}, "key column id"),
        ({"where": "nothing > 1"}, "nothing"),
        ({"hash": "who"}, "hash without a salt"),
        ({"wher": "n > 1"}, "no option wher"),
        ({"where": "n > 1 and RANDOM () > 0.5"}, "random is not the same every time"),
        ({"where": "current_date > date '2026-01-01'"}, "current_date is not the same"),
        ({"columns": "n", "without": "who"}, "both given"),
    ):
        with pytest.raises(ReplicationError, match=says):
            site.define("ops.public", "ops.people", "select", options)
    with pytest.raises(RequestError, match="no hook 'nope'.*entry point"):
        site.define("ops.public", "ops.people", "nope")
    assert [table.name for table in site.ledger.tables.all()] == ["ops.people"]
    public = site.define("ops.public", "ops.people", "select", {"columns": "n"})
    assert [column.name for column in public.columns] == ["id", "n"]
    for write in (
        lambda: site.writer().upsert(public, [{"id": 1, "n": 1}]),
        lambda: site.writer().upsert(public, [{"id": 1, "n": 1}], "batch"),
        lambda: site.writer().upsert_async(public, [{"id": 1, "n": 1}]),
        lambda: site.writer().upsert_async(public, [{"id": 1, "n": 1}], "batch"),
        lambda: site.writer().delete(public, [{"id": 1}]),
        lambda: site.writer().delete_async(public, [{"id": 1}]),
        lambda: site.writer().import_file(public, "x.parquet", "", lambda _: None),
    ):
        with pytest.raises(RequestError, match="derived from another table at cluster east"):
            write()
    with pytest.raises(RequestError, match="derived here itself"):
        site.define("ops.again", "ops.public", "select")
    with pytest.raises(RequestError, match=r"ops.people exists and is not derived"):
        site.define("ops.people", "ops.public", "select")


def test_another_hook_rewrites_only_what_it_changes(site: DerivingSite) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "select", PUBLIC)
    site.wal().append(spec, rows((1, "ann", 5), (2, "bob", 500), (3, "eve", 70)))
    site.derive(public)
    site.define("ops.public", options={"where": "n > 50", "null": "who"})
    site.derive(public)
    assert shown(site, public) == [(2, None, 500), (3, None, 70)]
    assert len(site.versions(public)) == 4, "one upsert and one delete more"
    site.define("ops.public", options={"hash": "who", "salt": "s"})
    site.derive(public)
    assert all(len(str(who)) == 64 for _, who, _ in shown(site, public)) and len(shown(site, public)) == 3


def test_a_hook_that_is_changed_while_a_batch_is_in_doubt_sees_all_rows(site: DerivingSite) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "select", {"where": "n < 5"})
    site.wal().append(spec, rows((1, "ann", 1), (2, "bob", 3)))
    site.catch_up()
    site.kill_at = "written"
    with pytest.raises(Killed):
        site.derive(public)
    site.define("ops.public", options={"where": "n > 2"})
    site.derive(public)
    assert shown(site, public) == [(2, "bob", 3)]


def test_a_hook_whose_version_changed_sees_all_rows_again(site: DerivingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    class Adding:
        version = "1"

        def __call__(self, options: object) -> hooks.Run:
            more = int(self.version)
            return lambda given: given.set_column(2, "n", pa.array([more] * given.num_rows, pa.int32()))

    adding = Adding()
    monkeypatch.setattr(hooks, "BUILT_IN", {"adding": adding})
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "adding")
    site.wal().append(spec, rows((1, "ann", 5)))
    site.derive(public)
    assert shown(site, public) == [(1, "ann", 1)]
    adding.version = "2"
    site.derive(public)
    assert shown(site, public) == [(1, "ann", 2)]


def test_derived_tables_follow_column_changes_of_the_source(site: DerivingSite) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "select", {"where": "n < 100", "null": "who"})
    wal = site.wal()
    wal.append(spec, rows((1, "ann", 5), (2, "bob", 6)))
    site.derive(public)
    alter = site.ledger.tables.alter
    spec = alter(spec.uuid, lambda own: rename_column(own, "n", "count", 1))
    spec = alter(spec.uuid, lambda own: rename_column(own, "id", "number", 2))
    spec = alter(spec.uuid, lambda own: widen_column(own, "count", pa.int64()))
    spec = alter(spec.uuid, lambda own: add_column(own, "more", pa.string(), "", next(uuids()), 3))
    wide = pa.table({"number": [3, 4], "count": [1 << 40, 7], "more": ["m", "secret"], "who": ["x", "y"]})
    wal.append(spec, wide)
    site.derive(public)
    public = site.ledger.tables.get("ops.public")
    assert shown(site, public) == [(1, None, 5), (2, None, 6), (4, None, 7)], "what is added stays out"
    assert public.by_name["n"].type == pa.int64()
    public = alter(public.uuid, lambda own: add_column(own, "more", pa.string(), "", next(uuids()), 4))
    public = alter(public.uuid, lambda own: rename_column(own, "n", "seen", 5))
    site.derive(public)
    assert shown(site, public)[2] == (4, None, 7, "secret")
    spec = alter(spec.uuid, lambda own: drop_column(own, "who"))
    wal.append(spec, pa.table({"number": [5], "count": [8], "more": ["z"]}))
    site.derive(public)
    assert shown(site, public)[3] == (5, None, 8, "z")


def test_all_rows_are_compared_when_changes_were_trimmed_before_they_were_derived(site: DerivingSite) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "select", PUBLIC)
    wal = site.wal()
    wal.append(spec, rows((1, "ann", 5), (2, "bob", 6)))
    site.derive(public)
    wal.delete(spec, [{"id": 1}])
    site.catch_up()
    wal.append(spec, rows((2, "bob", 60)))
    site.catch_up()
    wal.append(spec, rows((3, "eve", 7)))
    site.catch_up()
    far = 4 * 10**15
    merge_changes(site.tables, spec, far)
    trim(site.tables, site.ledger, spec, far, 0.0)
    assert len(site.tables.query('select * from "ops.people__changes" where _op >= 0')) < 5
    site.derive(public)
    assert shown(site, public) == [(2, None, 60), (3, None, 7)]


def test_rows_too_old_for_the_source_leave_the_derived_table(site: DerivingSite) -> None:
    spec = people()
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.people", "select", PUBLIC)
    site.wal().append(spec, rows((1, "ann", 5)))
    site.derive(public)
    site.now_us = time.time_ns() // 1000
    site.ledger.tables.alter(spec.uuid, lambda own: set_properties(own, {"max_age_s": "60"}, site.now_us))
    assert site.derive(public) and shown(site, public) == [(1, None, 5)]
    site.now_us += 2_000_000
    assert not site.derive(public), "all is compared again only once a twentieth of the age has passed"
    site.now_us += 61_000_000
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(type(site.ledger.derivations), "renew", lambda *_: 1 / 0)
        site.derive(public)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peer.tables.read.now_us", lambda: site.now_us)
        site.derive(public)
    assert shown(site, public) == []


def test_cell_tables_are_derived_too(site: DerivingSite) -> None:
    spec = cell_table("ops.cells", uuids=uuids(), groups={"meta": ["m"]})
    site.ledger.tables.create(spec)
    public = site.define("ops.public", "ops.cells", "select", {"where": "visibility = '' and family <> 'secret'"})
    wal = site.wal()
    cell = {"qualifier": "q", "visibility": "", "value": b"v"}
    wal.cells(spec, [cell | {"row": b"1", "family": f} for f in ("m", "o", "secret")])
    wal.cells(spec, [cell | {"row": b"2", "family": "m", "visibility": "top"}])
    site.derive(public)
    assert [(r["row"], r["family"]) for r in site.shown(public)] == [(b"1", "m"), (b"1", "o")]
    wal.cells(spec, [cell | {"row": b"1", "family": "m", "delete": True}])
    site.derive(public)
    assert [(r["row"], r["family"]) for r in site.shown(public)] == [(b"1", "o")]


def test_a_dropped_source_stops_the_derived_table_with_an_error(site: DerivingSite) -> None:
    site.ledger.tables.create(spec := people())
    public = site.define("ops.public", "ops.people", "select", PUBLIC)
    site.wal().append(spec, rows((1, "ann", 5)))
    site.derive(public)
    site.ledger.tables.drop(spec.uuid)
    for again in (lambda: site.derive(public), lambda: site.define("ops.public", hook="select", options={"null": "n"})):
        with pytest.raises(RequestError, match="ops.people, which ops.public is derived from, was dropped"):
            again()
    site.ledger.tables.drop(public.uuid)
    assert site.ledger.derivations.all() == []
