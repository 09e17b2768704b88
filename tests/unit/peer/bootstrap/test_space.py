"""A bootstrap without enough disk room is refused with figures."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from peer.bootstrap.keeper import BootstrapKeeper
from peer.bootstrap.space import BootstrapSpace, DiskSpace, needed_space
from peer.status.disk_use import folder_bytes
from replication import config as configuration
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, NoSpaceError, RequestError
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, PeerProgress
from replication.tables.base import Catalog, History, Snapshot
from tests.contract.ledger_stores import EAST, WEST, peer
from tests.fakes.ledger import MemoryLedger
from tests.fakes.tables import MemoryTables
from tests.sites import table

MIB = 1 << 20


def no_catalog() -> Catalog:
    raise AssertionError("the files lie on this disk")


def test_a_bootstrap_without_room_is_refused_with_figures() -> None:
    BootstrapSpace({"ops.t": 10 * MIB}, 5 * MIB, 115 * MIB, 100 * MIB).check()
    with pytest.raises(
        RequestError, match=r"15\.0 MiB here: 10\.0 MiB for a copy, 5\.0 MiB of WAL.*114\.0 MiB are free"
    ):
        BootstrapSpace({"ops.t": 10 * MIB}, 5 * MIB, 114 * MIB, 100 * MIB).check()
    with pytest.raises(RequestError, match="enablereplication --from-now, after disablereplication if it is sent"):
        BootstrapSpace({"ops.t": 10 * MIB}, 5 * MIB, 114 * MIB, 100 * MIB).check()
    with pytest.raises(RequestError, match=r"that 2 tables have .*12\.0 MiB for copies.* 7\.0 MiB for bootstraps"):
        BootstrapSpace({"ops.t": 10 * MIB, "ops.u": 2 * MIB}, 0, 118 * MIB, 100 * MIB, 7 * MIB).check()


def test_the_estimate_grows_with_the_table_and_with_what_is_written(tmp_path: Path) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    ledger, spec = MemoryLedger(ClusterId("east", uuid4())), table()

    def needed() -> BootstrapSpace:
        return needed_space(config, ledger, [spec], "north", no_catalog)

    assert (needed().peer_bytes, needed().wal_bytes) == (0, 0)
    folder = config.warehouse_dir / "ops" / "flights" / "data"
    folder.mkdir(parents=True)
    (folder / "file.parquet").write_bytes(bytes(MIB))
    alone = needed()
    assert alone.peer_bytes >= 2 * MIB and alone.wal_bytes == 0 and alone.free_bytes > 0
    file = ledger.files.allocate("h0", FileKind.WAL, str(tmp_path), "boot", "w").file
    ledger.files.close(file, 600 * MIB)
    ledger.registration.register_own(file, 256, 600 * MIB, [])
    assert needed().wal_bytes > MIB
    ledger.close()


def test_bootstraps_that_are_under_way_count_here_and_at_their_peer(tmp_path: Path) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    ledger = MemoryLedger(WEST)
    tables = [table(name) for name in ("ops.one", "ops.two", "ops.three")]
    for spec in tables:
        ledger.tables.create(spec)
        folder = config.warehouse_dir.joinpath(*spec.name.split("."))
        folder.mkdir(parents=True)
        (folder / "file.parquet").write_bytes(bytes(MIB))
    for there in (peer(), peer("south", EAST)):
        ledger.rules.define(there, 0)

    def needed(*specs: TableSpec) -> tuple[int, int, int]:
        found = needed_space(config, ledger, specs, "north", no_catalog)
        return sum(found.copies.values()) // MIB, found.begun_bytes // MIB, found.peer_bytes // MIB

    one, two, three = tables
    assert needed(one, two) == (6, 0, 6)
    ledger.rules.enable("north", one.uuid, ["default"], one.name, 0, bootstrap=True)
    ledger.rules.enable("south", two.uuid, ["default"], two.name, 0, bootstrap=True)
    assert needed(three) == (3, 6, 6), "what goes to south needs room here only"
    assert needed(one, three) == (6, 3, 6), "what is asked for again counts once"
    (wanted,) = [each for each in ledger.bootstraps.wanted() if each.peer == "north"]
    row = ledger.bootstraps.begin_file(wanted, "h0", str(tmp_path), "boot")
    Path(row.path).write_bytes(bytes(MIB))
    assert needed(three) == (3, 5, 6)
    ledger.bootstraps.finish_file(row.file, 2 * MIB)
    assert needed(three) == (3, 3, 5), "it is written"
    ledger.files.record([PeerProgress(row.file, "north", Ranges.of((0, 2 * MIB)), 0)])
    assert needed(three) == (3, 3, 4), "it has landed"
    ledger.close()


class Elsewhere(MemoryTables):
    """Tables whose snapshots say how many bytes of files they have, as Iceberg's do."""

    told = {"total-files-size": str(MIB)}

    def history(self, name: str) -> History:
        return History(1, {1: Snapshot(1, None, "append", self.told, 0)})


def test_the_size_of_a_table_elsewhere_is_taken_from_its_snapshots(tmp_path: Path) -> None:
    given = {"cluster": {"name": "east", "data_dir": str(tmp_path)}, "catalog": {"warehouse": "s3://bucket/tables"}}
    config, ledger, spec = configuration.load(None, given, {}), MemoryLedger(WEST), table()
    there = Elsewhere()
    assert needed_space(config, ledger, [spec], "north", lambda: there).copies == {spec.name: 0}
    there.create(spec)
    found = needed_space(config, ledger, [spec], "north", lambda: there)
    assert found.copies == {spec.name: 9 * MIB} and found.unknown == ()
    there.told = {}
    assert needed_space(config, ledger, [spec], "north", lambda: there).unknown == (spec.name,)

    def away() -> Catalog:
        raise CoordinationError("the catalog does not answer")

    assert needed_space(config, ledger, [spec], "north", away).unknown == (spec.name,)
    ledger.close()


def test_a_copy_that_ran_out_of_room_begins_again_once_there_is_more() -> None:
    free = [200 * MIB]
    made = DiskSpace(lambda: free[0], 100 * MIB)
    made.begin()
    for size in range(1, 41):
        made.grow(size * MIB)
    free[0] = 99 * MIB
    with pytest.raises(NoSpaceError, match=r"less than 100\.0 MiB are free, and 100\.0 MiB must stay"):
        for size in range(41, 60):
            made.grow(size * MIB)
    free[0] = 150 * MIB
    with pytest.raises(NoSpaceError, match=r"less than 176\.0 MiB are free"):
        made.begin()
    free[0] = 200 * MIB
    made.begin()


def test_a_folder_that_cannot_be_read_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_bytes(b"12345")
    (tmp_path / "broken").symlink_to("nowhere")
    assert folder_bytes(tmp_path) - (tmp_path / "broken").lstat().st_size == 5
    assert folder_bytes(tmp_path / "gone") == folder_bytes(tmp_path / ("x" * 300)) == 0


def test_bootstraps_are_looked_for_more_often_while_one_is_under_way(tmp_path: Path) -> None:
    ledger = MemoryLedger(WEST)
    keeper = BootstrapKeeper(MemoryTables(), ledger, LocalFiles(), "h0", str(tmp_path), "boot")
    keeper.run_once()
    idle_s = keeper.pause_s()
    keeper.state = {"north ops.flights": "it is on its way"}
    assert keeper.pause_s() < idle_s
    ledger.close()
