"""A copy of a data directory is refused while the roles of its host slot run in the original."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from peer.client.opened import OpenedParts
from replication import config as configuration
from replication.config import Config
from replication.coordination import zookeeper
from replication.coordination.base import HostRecord
from replication.coordination.host import check_cluster, check_place, host_record
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.errors import ConfigError
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.sessions import session_of

EAST = ClusterId("east", UUID(int=1))


def _config(folder: Path) -> Config:
    return configuration.load(None, {"cluster": {"name": "east", "data_dir": str(folder)}}, {})


@pytest.fixture
def ensemble(tmp_path: Path) -> MemoryEnsemble:
    """A cluster whose roles were started in ``east``, beside which there is ``copy``."""
    (tmp_path / "east").mkdir()
    (tmp_path / "copy").mkdir()
    ensemble = MemoryEnsemble()
    coordination = ensemble.connect("/walship/east")
    coordination.establish(EAST, "0")
    coordination.put_host(host_record(_config(tmp_path / "east")))
    coordination.close()  # else it registers the host again when a test removes it
    return ensemble


def test_the_id_of_a_data_directory_is_durable_with_its_name_before_anybody_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, synced = os.fsync, list[int]()

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    config = _config(tmp_path / "east")
    made = host_record(config)
    assert synced == [path.stat().st_ino for path in (config.host_id_file, config.data_dir)], "content, then name"
    assert host_record(config) == made and len(synced) == 2 and made.identity


def test_a_copy_is_refused_by_name(ensemble: MemoryEnsemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[Coordination] = []

    def connect(*_: object, **__: object) -> Coordination:
        sessions.append(ensemble.connect("/walship/east"))
        return sessions[-1]

    monkeypatch.setattr(zookeeper, "connect", connect)
    opened = OpenedParts(_config(tmp_path / "copy"), MemoryLedger(EAST))
    for part in ("coordination", "writer"):
        with pytest.raises(ConfigError, match=r"copy is not the data directory of host h0 .* that is .*east, so"):
            getattr(opened, part)
    assert not any(map(session_of, sessions))
    opened.close()
    opened = OpenedParts(_config(tmp_path / "east"), MemoryLedger(EAST))
    assert opened.coordination is sessions[-1]
    opened.close()


def test_another_way_to_the_same_folder_and_one_that_cannot_be_seen_are_not(
    ensemble: MemoryEnsemble, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "east")
    coordination = ensemble.connect("/walship/east")
    check_place(_config(tmp_path / "link"), coordination)
    coordination.put_host(HostRecord("h0", "/seen/elsewhere", "", identity=coordination.hosts()[0].identity))
    check_place(_config(tmp_path / "copy"), coordination)
    coordination.remove_host("h0")
    check_place(_config(tmp_path / "copy"), coordination)


def test_another_clusters_zookeeper_is_refused_and_ones_own_from_before_a_restore_is_not(
    ensemble: MemoryEnsemble,
) -> None:
    coordination = ensemble.connect("/walship/east")
    other = ClusterId("east", UUID(int=2))
    with pytest.raises(ConfigError, match=r"/walship/east belongs to .*, not to"):
        check_cluster(other, (), coordination)
    check_cluster(other, (EAST,), coordination)
    check_cluster(EAST, (), coordination)
    check_cluster(EAST, (), ensemble.connect("/walship/unused"))
