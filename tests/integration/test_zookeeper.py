"""The real ZooKeeper server as a child process, and what clients live through when it stops, freezes or speaks TLS."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError
from kazoo.security import OPEN_ACL_UNSAFE

from replication.coordination import embedded
from replication.coordination.access import FILE_NAME, ZookeeperAccess, keep_access, read_access
from replication.coordination.base import HostRecord, Public
from replication.coordination.embedded import EmbeddedZookeeper, four_letter_word
from replication.coordination.paths import MemberKind, Quorum
from replication.coordination.tls import ZookeeperTls
from replication.coordination.zookeeper import ZookeeperTree, connect, connect_public
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.errors import ConfigError, CoordinationError
from replication.tables.spark import jars
from replication.tables.spark.jars import java_home_check
from tests.certificates import Authority
from tests.sessions import holds
from tests.waiting import wait_until

EAST = ClusterId("east", uuid4())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZookeeper]:
    """A server that a test may stop and freeze."""
    with EmbeddedZookeeper(tmp_path / "zookeeper", 0, heap_mb=64) as own:
        yield own
        if own.pid is not None:
            os.kill(own.pid, signal.SIGCONT)


def test_data_and_even_a_session_survive_a_restart_of_the_server(server: EmbeddedZookeeper) -> None:
    with connect(Quorum(server.servers, "/walship/east")) as here:
        here.establish(EAST, "0.1.0")
        here.set_assignment("h0", b"one", -1)
        here.enrol(MemberKind.WORKERS, "h0", {"pid": 1})
        seen: list[bytes] = []
        here.watch_assignment("h0", lambda read: seen.append(read.content))
        wait_until(lambda: seen == [b"one"], despite=CoordinationError)
        server.stop()
        with pytest.raises(CoordinationError):
            here.role()
        server.start()
        wait_until(lambda: holds(here, MemberKind.WORKERS), despite=CoordinationError)
        read = here.assignments().get("h0")
        assert read is not None and read.content == b"one"
        here.set_assignment("h0", b"two", read.version)
        wait_until(lambda: seen == [b"one", b"two"], despite=CoordinationError)


def test_a_cluster_whose_zookeeper_lost_its_data_is_there_again(server: EmbeddedZookeeper, tmp_path: Path) -> None:
    with connect(Quorum(server.servers, "/walship/east"), reread_s=0.5, lost_data_s=1.0) as here:
        here.establish(EAST, "0.1.0")
        here.put_host(HostRecord("h0", "/data", ""))
        standby = here.role().state.becomes(Role.STANDBY)
        here.set_role(standby, here.role().version)
        here.enrol(MemberKind.WORKERS, "h0", {"pid": 1})
        wait_until(lambda: holds(here, MemberKind.WORKERS), despite=CoordinationError)
        for number in range(200):  # the new server's transactions are behind what was seen
            here.set_assignment(f"h{number}", b"one", -1)
        server.stop()
        shutil.rmtree(tmp_path / "zookeeper")
        server.start()
        wait_until(lambda: holds(here, MemberKind.WORKERS), despite=CoordinationError)
        assert here.public().cluster == EAST and here.role().state == standby
        assert [host.slot for host in here.hosts()] == ["h0"]


def test_a_server_left_by_an_owner_that_was_killed_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home_check())
    monkeypatch.setenv("PATH", "")  # small images have no ps
    left = EmbeddedZookeeper(tmp_path, 0, heap_mb=64)
    left.start()
    process = left.pid
    port = int(left.servers.rpartition(":")[2])
    assert process is not None
    with EmbeddedZookeeper(tmp_path, port, heap_mb=64) as taken_over:
        assert taken_over.alive() and taken_over.pid != process
    left.stop()


def test_a_folder_of_any_name_holds_the_servers_data(tmp_path: Path) -> None:
    folder = tmp_path / "50% of sp\N{LATIN SMALL LETTER A WITH DIAERESIS}ce #1"
    with EmbeddedZookeeper(folder, 0, heap_mb=64):
        assert (folder / "data" / "version-2").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_server_starts_from_an_archive_of_its_classes_or_despite_a_useless_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "share" / "zookeeper.jsa"
    monkeypatch.setattr(jars, "class_archive", lambda name: archive)
    embedded.make_class_archive()
    with EmbeddedZookeeper(tmp_path / "with", 0) as server:
        assert str(archive) in Path(f"/proc/{server.pid}/maps").read_text(), "Java maps the archive"
    archive.unlink()
    archive.write_bytes(b"nothing of Java's" * 10_000)
    with EmbeddedZookeeper(tmp_path / "despite", 0) as server:
        assert server.alive()
    said = (tmp_path / "despite" / "server.log").read_text().splitlines()
    assert not [line for line in said if line.startswith(("[", "OpenJDK", "Java"))], "nothing from the JVM itself"


def test_a_port_that_is_taken_is_named_in_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            EmbeddedZookeeper(tmp_path, port).start()


def test_the_server_answers_two_four_letter_words_and_no_others(server: EmbeddedZookeeper) -> None:
    host, _, port = server.servers.rpartition(":")
    assert four_letter_word(host, int(port), "ruok") == "imok"
    assert "Zookeeper version" in four_letter_word(host, int(port), "srvr")
    assert "not in the whitelist" in four_letter_word(host, int(port), "envi")
    server.stop()
    assert four_letter_word(host, int(port), "ruok") == ""


def test_a_frozen_server_costs_a_bounded_wait_and_nothing_else(server: EmbeddedZookeeper) -> None:
    with connect(Quorum(server.servers, "/walship/east"), call_timeout_s=0.5) as here:
        here.establish(EAST, "0.1.0")
        here.enrol(MemberKind.WORKERS, "h0", {})
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(CoordinationError):
            for _ in range(100):  # a thread of the server may answer once more
                began = time.monotonic()
                here.role()
        assert time.monotonic() - began < 5.0
        os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: holds(here, MemberKind.WORKERS), despite=CoordinationError)
        assert here.role().state.epoch == 1


def test_the_public_part_is_read_from_afar_and_failures_are_told_apart(server: EmbeddedZookeeper) -> None:
    with connect(Quorum(server.servers, "/walship/east")) as here:
        here.establish(EAST, "0.1.0")
        here.publish(Public(EAST, "0.1.0", ("127.0.0.1:9000",)))
    assert connect_public(server.servers, "/walship/east") == Public(EAST, "0.1.0", ("127.0.0.1:9000",))
    with pytest.raises(CoordinationError, match="no cluster at .*/walship/west"):
        connect_public(server.servers, "/walship/west")
    server.stop()
    began = time.monotonic()
    with pytest.raises(CoordinationError, match=r"did not answer within 0\.5 s"):
        connect_public(server.servers, "/walship/east", timeout_s=0.5)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("text", ["", "zk1", "zk1:2181", "zk1:2181/", "zk1:2181//east", "zk1:2181/../east"])
def test_an_address_that_names_no_cluster_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="names no cluster"):
        Quorum.parse(text)


def test_an_address_reads_back_as_it_was_written() -> None:
    assert str(Quorum.parse("zk1:2181,zk2:2181/walship/east/")) == "zk1:2181,zk2:2181/walship/east"


def test_over_tls_only_certificates_of_the_own_authority_pass_on_either_side(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with EmbeddedZookeeper(tmp_path / "zookeeper", 0, heap_mb=64, tls=ours.tls("server")) as server:
        with connect(Quorum(server.servers, "/walship/east"), tls=ours.tls("client")) as here:
            here.establish(EAST, "0.1.0")
        assert connect_public(server.servers, "/walship/east", tls=ours.tls("client")).cluster == EAST
        mixed = ours.tls("client")
        foreign = theirs.tls("client")
        for refused in (
            None,
            foreign,
            ZookeeperTls(mixed.ca, foreign.certificate, foreign.key),
            ZookeeperTls(foreign.ca, mixed.certificate, mixed.key),
        ):
            with pytest.raises(CoordinationError, match="did not answer"):
                connect_public(server.servers, "/walship/east", tls=refused, timeout_s=1.0)
    elsewhere = ours.tls("elsewhere", "10.9.8.7")
    imposter = EmbeddedZookeeper(tmp_path / "imposter", 0, heap_mb=64, tls=elsewhere)
    with pytest.raises(ConfigError, match="certificate is not valid for '127.0.0.1'"):
        imposter.start(timeout_s=30.0)


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the TLS files for ZooKeeper cannot be used"):
        ZookeeperTls(str(tmp_path / "none"), "", "").context()


def test_only_the_cluster_itself_changes_its_nodes_and_anyone_finds_it(server: EmbeddedZookeeper) -> None:
    root, public = "/walship/east", Public(EAST, "0.1.0")
    access = ZookeeperAccess(root, "east", "secret")
    with connect(Quorum(server.servers, root), access=access) as here:
        here.establish(EAST, "0.1.0")
        here.put_host(HostRecord("h0", "/data", "sqlite:///x"))
        here.set_assignment("h0", b"work", -1)
        here.enrol(MemberKind.WORKERS, "h0", {"pid": 1})
        wait_until(lambda: here.has_enrolled(MemberKind.WORKERS, "h0"), despite=CoordinationError)
        stranger = KazooClient(server.servers)
        stranger.start(10)
        try:
            nodes = ["/walship", root, *_below(stranger, root)]
            assert {f"{root}/public", f"{root}/workers/h0", f"{root}/hosts/h0"} <= {*nodes}
            for node in nodes:
                with pytest.raises(NoAuthError):
                    stranger.set(node, b"other")
                with pytest.raises(NoAuthError):
                    stranger.set_acls(node, OPEN_ACL_UNSAFE)
                with pytest.raises((NoAuthError, NotEmptyError)):
                    stranger.delete(node)
            for hidden in ("assignments/h0", "role", "peers"):
                with pytest.raises(NoAuthError):
                    stranger.get(f"{root}/{hidden}")
            stranger.create("/walship/west", b"")  # another cluster may be there
        finally:
            stranger.stop()
            stranger.close()
        assert connect_public(server.servers, root) == public
        with connect(Quorum(server.servers, root)) as other:
            assert [host.slot for host in other.hosts()] == ["h0"]
            with pytest.raises(CoordinationError, match=FILE_NAME):
                other.set_role(RoleState(Role.STANDBY, 2), 0)
        with (
            connect(Quorum(server.servers, root), access=ZookeeperAccess(root, "east", "guess")) as other,
            pytest.raises(
                (ConfigError, CoordinationError), match=f"another credential.*{FILE_NAME}.*or set a root that"
            ),
        ):
            other.establish(EAST, "0.1.0")
        assert here.role().state.role is Role.ACTIVE


def _below(client: KazooClient, path: str) -> list[str]:
    """Nodes below ``path``, as far as anyone may list them."""
    try:
        children = [f"{path}/{name}" for name in client.get_children(path)]
    except NoAuthError:
        return []
    return [node for child in children for node in (child, *_below(client, child))]


def test_nodes_of_before_get_access_lists_at_the_next_start(server: EmbeddedZookeeper) -> None:
    quorum = Quorum(server.servers, "/walship/east")
    with connect(quorum) as before:
        before.establish(EAST, "0.1.0")
        before.set_assignment("h0", b"work", -1)
    with connect(quorum, access=ZookeeperAccess(quorum.root, "east", "secret")) as here:
        here.establish(EAST, "0.1.0")
        with connect(quorum) as stranger, pytest.raises(CoordinationError, match="another credential"):
            stranger.set_assignment("h0", b"other", 0)
        read = here.assignments().get("h0")
        assert read is not None and read.content == b"work"


def test_the_credential_is_drawn_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    kept: list[str] = []

    def keep(drawn: str) -> str:
        kept.append(drawn)
        return kept[0]

    (tmp_path / "h1").mkdir()
    assert read_access(tmp_path, "/e") is None
    made = keep_access(tmp_path, "/e", "east", keep)
    assert made == read_access(tmp_path, "/e") == keep_access(tmp_path, "/e", "east", keep)
    assert keep_access(tmp_path / "h1", "/e", "east", keep) == made and len(made.password) == 64
    file = tmp_path / FILE_NAME
    assert file.stat().st_mode & 0o777 == 0o600 and made.password not in repr(made)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read"):
        read_access(tmp_path, "/e")


def test_a_watch_that_is_set_again_and_again_is_kept_and_called_once(server: EmbeddedZookeeper) -> None:
    with connect(Quorum(server.servers, "/walship/east")) as here:
        here.establish(EAST, "0.1.0")
        tree, called = here._tree, list[None]()
        assert isinstance(tree, ZookeeperTree)

        def watch() -> None:
            called.append(None)

        for _ in range(10):
            tree.get(here.paths.assignment("h0"), watch)
            tree.children(here.paths.assignments, watch)
        assert sum(map(len, (*tree._client._data_watchers.values(), *tree._client._child_watchers.values()))) < 10
        here.set_assignment("h0", b"one", -1)
        wait_until(lambda: len(called) == 2)
