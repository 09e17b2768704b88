"""SQLite's ledger is its owner's alone, whatever the umask: it has grants, and digests of invitations."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from replication.core.ids import NIL_UUID, ClusterId
from replication.errors import ConfigError
from replication.ledger.sql.ledger import initialise, open_ledger


def test_a_ledger_is_made_private_and_a_wider_one_is_refused_with_the_command(tmp_path: Path) -> None:
    file, mask = tmp_path / "ledger.db", os.umask(0o022)
    try:
        initialise(str(file), ClusterId("east", NIL_UUID))
        ledger = open_ledger(str(file))
        assert ledger.grants.all() == []
        made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("ledger.db*")}
        ledger.close()
    finally:
        os.umask(mask)
    assert set(made.values()) == {0o600} and len(made) >= 2, made
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=f"chmod 600 {file}"):
        open_ledger(str(file))
