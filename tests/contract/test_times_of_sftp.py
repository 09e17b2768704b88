"""Files that are dated outside of what SFTP has: they are copied once, with the nearest time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from tests.copying import job, write_tree
from tests.file_servers import sftp_server

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_files_of_before_1970_and_after_2106_are_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_tree(tmp_path / "src", {"old": b"1", "far": b"2", "now": b"3"})
    os.utime(tmp_path / "src/old", (-86400, -86400))
    os.utime(tmp_path / "src/far", (5e9, 5e9))
    (tmp_path / "served").mkdir()
    with sftp_server(tmp_path / "served") as url:
        for published, skipped in ((3, {}), (0, {"same": 3})):
            with open_store(f"{url}/dst") as target:
                counts = job(LocalStore(str(tmp_path / "src")), target).run()
            assert (counts.failures, counts.files_published, counts.skipped) == ({}, published, skipped)
    assert [int((tmp_path / "served/dst" / name).stat().st_mtime) for name in ("old", "far")] == [0, 2**32 - 1]
