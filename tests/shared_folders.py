"""A peer's receiver that shares a folder, and the address at which its caller finds it; no ZooKeeper is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replication import __version__, config
from replication.coordination.base import Public
from replication.coordination.paths import Quorum
from tests.sites import Site


@contextmanager
def shared_folder(folder: Path, **receiver: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """West shares ``inbox`` below ``folder`` with east; the folder's address, and options by which east calls."""
    inbox = {"path": str(folder / "inbox"), "clusters": ["east"]}
    east = Site(folder, "east")
    west = Site(folder, "west", receiver={"folders": {"inbox": inbox}, **receiver})
    with pytest.MonkeyPatch.context() as patched, west.receiver() as served:
        east.send_to(west)
        public = Public(west.cluster, __version__, (f"127.0.0.1:{served.port}",))
        patched.setattr("peer.folders.filesystem.read_public", lambda *_: (Quorum("zk:2181", "/x"), public))
        file = folder / "east.toml"
        file.write_text(config.default_toml("east", east.config.data_dir, ledger={"url": east.config.ledger_url}))
        yield "walship://west/inbox", {"cluster": str(file)}
    east.close()
    west.close()
