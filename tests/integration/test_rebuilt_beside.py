"""Ledgers that are made anew beside what is left of the lost one: copies of frames, SQLite's WAL, a role."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.repair.rebuild import rebuild_ledger
from replication.core.definition.schema import TableSpec
from replication.core.roles import Role
from replication.errors import RequestError
from replication.files.frames import save_frame
from replication.files.local import LocalFiles
from tests.integration.test_rebuilt_ledger import lose_ledger
from tests.integration.test_restored import sites
from tests.replaying import TableSite
from tests.sites import Wal, rows

__all__ = ["sites"]


def test_no_new_frame_s_copy_takes_the_place_of_one_from_before_a_ledger_was_made_anew(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    """It may be all that is left of an acked row: the file of a lost write is deleted as that of an applied one."""
    east, _, spec = sites
    late = Wal(east, "w0")
    late.append(spec, rows(10, 2))
    east.register()
    copies = str(east.config.data_dir / "quarantine")
    copy = Path(save_frame(LocalFiles(), copies, late.row.file, 256, Path(late.path).read_bytes()[256 : late.length]))
    before = copy.read_bytes()
    lose_ledger(east)
    Path(late.path).unlink()  # it was retired
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    new = Wal(back, "w1")
    new.append(spec, rows(20, 3))
    save_frame(LocalFiles(), copies, new.row.file, 256, Path(new.path).read_bytes()[256 : new.length])
    assert copy.read_bytes() == before
    back.close()


def test_a_cluster_that_began_as_standby_takes_no_writes_once_its_ledger_and_zookeeper_are_made_anew(
    tmp_path: Path,
) -> None:
    west = TableSite(tmp_path, "west")
    lose_ledger(west)
    section = west.config.cluster.model_copy(update={"standby": True})
    made = rebuild_ledger(west.config.model_copy(update={"cluster": section}), west.tables, LocalFiles())
    back = TableSite(tmp_path, "west", cluster=made.cluster, tables=west.tables)
    assert back.ledger.terms.role().role is Role.STANDBY
    back.close()


def test_what_is_left_of_a_lost_ledger_is_not_applied_to_the_one_made_anew(
    sites: tuple[TableSite, TableSite, TableSpec],
) -> None:
    """SQLite takes a WAL beside a database for that database's own."""
    east, _, spec = sites
    Wal(east, "w0").append(spec, rows(0, 3))
    east.register()
    left = east.config.data_dir / "ledger.db-wal"
    content = left.read_bytes()
    lose_ledger(east)
    left.write_bytes(content)  # a killed cluster leaves it
    with pytest.raises(RequestError, match="there is a ledger at .*ledger.db-wal") as refused:
        rebuild_ledger(east.config, east.tables, LocalFiles())
    assert "move it away" in refused.value.hint
    left.unlink()
    assert rebuild_ledger(east.config, east.tables, LocalFiles()).tables == (spec.name,)
