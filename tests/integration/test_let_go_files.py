"""Files that the ledger let go are deleted by their host, whichever of its roles run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from peer.receive import receiver
from replication.ledger.base import FileKind
from replication.ledger.orphans import OrphanRemover
from replication.worker import host
from tests.sites import Site
from tests.waiting import wait_until


def test_what_a_master_elsewhere_let_go_is_deleted_by_the_role_whose_file_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((host, "INTERVAL_S"), (receiver, "INTERVAL_S"), (receiver, "_ANNOUNCE_S")):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setitem(OrphanRemover.__init__.__kwdefaults__, "age_s", 0.0)
    with closing(Site(tmp_path, "east")) as site:
        paths = []
        for kind, folder in ((FileKind.WAL, site.config.wal_dir), (FileKind.LANDING, site.config.landing_dir)):
            folder.mkdir(parents=True, exist_ok=True)
            row = site.ledger.files.allocate("h0", kind, str(folder), site.boot)
            paths.append(Path(row.path))
            paths[-1].write_bytes(bytes(row.length))
            site.ledger.files.close(row.file, row.length)
            site.ledger.files.retire(row.file, site.term)  # its master then dies, or is on another host
        with site.worker():
            wait_until(lambda: not paths[0].exists())
        assert paths[1].exists()
        with site.receiver():
            wait_until(lambda: not paths[1].exists())
