"""reincarnate and rebuildledger need the cluster to themselves."""

from contextlib import closing

import pytest

from replication import config as configuration
from replication.errors import ConfigError, LockedFileError, RequestError
from replication.files.local import LocalFiles
from shell import main
from shell.processes.roles import make_ledger

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("verb", "real"),
    [
        ("reincarnate", "peer.repair.reincarnate.reincarnate"),
        ("rebuildledger", "peer.repair.rebuild.rebuild_ledger"),
    ],
)
def test_a_cluster_does_not_start_while_it_gets_another_id(tmp_path, monkeypatch, capsys, verb, real):
    """As where a service manager restarts it: its processes would use a ledger that is replaced beneath them."""
    file = str(tmp_path / "east" / "walship.toml")
    assert main.run(["init", str(tmp_path / "east")]) == 0

    def meanwhile(*_):
        assert main.run(["up", "--config", file, "--detach"]) == LockedFileError.exit_code
        raise ConfigError("done", "")

    monkeypatch.setattr(real, meanwhile)
    assert main.run(["--cluster", file, verb, "--yes"]) == ConfigError.exit_code
    told = capsys.readouterr().err
    assert "is used by another walship" in told and "rebuildledger, wait" in told and "done" in told


@pytest.mark.parametrize("lock", ["wal/h0-77-ab.lock", "run/receiver.lock", "run/replay.lock"])
@pytest.mark.parametrize("verb", ["reincarnate", "rebuildledger"])
def test_a_cluster_gets_no_other_id_while_a_program_uses_it(tmp_path, capsys, verb, lock):
    """A writer would ack rows, once ZooKeeper is there again, in a WAL that the ledger has as CLOSED.

    Replay that was submitted, or that a killed ``up`` has left for some seconds, would commit frames that are not known
    as applied. Rows of tables without a key would be there twice.
    """
    file = tmp_path / "east" / "walship.toml"
    assert main.run(["init", str(tmp_path / "east")]) == 0
    config = configuration.load(file)
    if verb == "reincarnate":
        make_ledger(config)
    path = config.data_dir / lock
    path.parent.mkdir(exist_ok=True)
    with closing(LocalFiles().create(str(path))) as held:
        held.lock()
        assert main.run(["--cluster", str(file), verb, "--yes"]) == RequestError.exit_code
        assert f"still uses the cluster, and has locked {path}" in capsys.readouterr().err.replace("\n", "")
    assert main.run(["--cluster", str(file), verb, "--yes"]) == 0
