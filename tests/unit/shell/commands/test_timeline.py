"""``timeline list`` and ``timeline files``: what was done to a dataset, and its files as of any instant."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from peer.timeline.configured import configured_timeline, configured_views
from peer.timeline.listing import FolderListings
from replication import config as configuration
from replication.config import Config
from replication.core.clock import moment_text
from replication.core.ids import ClusterId
from replication.core.timeline.instants import Action, Changes, FileVersion
from replication.errors import LockedFileError, RequestError
from replication.ledger.drills import Drill
from replication.ledger.sql.ledger import initialise, open_ledger
from shell import main
from tests.tables_made import keyed


def test_instants_are_listed_and_files_are_those_of_the_instant_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, root = tmp_path / "walship.toml", tmp_path / "lake"
    file.write_text(configuration.default_toml("east", "."))
    timeline = configured_timeline(configuration.load(file))
    (root / "p").mkdir(parents=True)
    (root / "p" / "a").write_text("abc")
    (root / "p" / "b").write_text("abcd")
    first, second = FileVersion("p", "p/a", 3), FileVersion("p", "p/b", 4)
    one = timeline.record(Action.COPY, "lake", Changes(adds=(first,)), root=str(root))
    timeline.record(Action.COPY, "lake", Changes(adds=(second,), replaces=(first.key,)), root=str(root))

    def run(*words: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(main.make_app(), ["timeline", *words, "--cluster", str(file), "--json"])
        assert done.exit_code == 0, done.output
        return list(json.loads(done.stdout))

    listed = run("list")
    assert [(each["action"], each["state"], each["dataset"]) for each in listed] == [("copy", "completed", "lake")] * 2
    assert [(each["path"], each["bytes"], each["size"]) for each in run("files", "lake")] == [("p/b", 4, "4 B")]
    assert [each["path"] for each in run("files", "lake", "--as-of", str(one.time))] == ["p/a"]


@pytest.mark.parametrize("words", [["files"], ["clean", "--keep-versions", "1"], ["rollback"], ["restore"]])
def test_a_folder_of_a_peer_is_asked_for_by_the_cluster_whose_timeline_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("WALSHIP_CLUSTER", "")
    file = tmp_path / "walship.toml"
    file.write_text(configuration.default_toml("east", "."))
    config = configuration.load(file)
    initialise(config.ledger_url, ClusterId("east", UUID(int=1)))
    adds = (FileVersion("p", "p/a", 1, "p/a"), FileVersion("p", "p/b", 1, "p/a"))
    timeline = configured_timeline(config)
    first = timeline.record(Action.COPY, "out", Changes(adds=adds[:1]), root="walship://west/inbox")
    timeline.record(Action.COPY, "out", Changes(adds=adds[1:], replaces=(adds[0].key,)))
    named = [words[0], "out", *(words[1:] or [str(first.completed)] * (words[0] != "files")), "--cluster", str(file)]
    done = CliRunner().invoke(main.make_app(), ["timeline", *named])
    assert "cluster east has no peer 'west'" in str(done.exception), "as its ledger has it"


_ROLE = """
import sys
from tests.unit.shell.commands.test_timeline import listing
from shell.processes import role_process, roles
def run_role(role, config, stop, ready):
    with listing(config):
        pass
roles.run_role = run_role
role_process.serve("timeline", sys.argv[1], None)
"""


@contextmanager
def listing(config: Config) -> Iterator[None]:
    """In place of the server: lists a partition of ``out``, as for a client's question."""
    with closing(configured_views(config, configured_timeline(config))) as views:
        views.latest("out", "p")
        yield


@pytest.mark.parametrize("is_role", [False, True])
def test_the_server_asks_for_a_folder_of_a_peer_by_its_own_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_role: bool
) -> None:
    monkeypatch.setenv("WALSHIP_CLUSTER", "")
    file = tmp_path / "walship.toml"
    file.write_text(configuration.default_toml("east", "."))
    config = configuration.load(file)
    initialise(config.ledger_url, ClusterId("east", UUID(int=1)))
    added = Changes(adds=(FileVersion("p", "p/a", 1),))
    configured_timeline(config).record(Action.COPY, "out", added, root="walship://west/inbox")
    if is_role:
        line = [sys.executable, "-c", _ROLE, "walship.toml"]
        environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])}
        subprocess.run(line, cwd=tmp_path, env=environ, timeout=60, check=False, capture_output=True)
        told = (config.run_dir / "timeline.json").read_text()
    else:
        monkeypatch.setattr("peer.timeline.serving.configured.serving_timeline", listing)
        told = str(CliRunner().invoke(main.make_app(), ["timeline", "serve", "--cluster", str(file)]).exception)
    assert "cluster east has no peer 'west'" in told, "as its ledger has it"


def test_instants_of_one_dataset_or_table_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "walship.toml"
    file.write_text(configuration.default_toml("east", "."))
    config = configuration.load(file)
    for dataset in ("lake", "sea"):
        configured_timeline(config).record(Action.COPY, dataset, Changes(), root=str(tmp_path / dataset))

    def run(*words: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(main.make_app(), ["timeline", "list", *words, "--cluster", str(file), "--json"])
        if isinstance(done.exception, RequestError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return list(json.loads(done.stdout))

    assert [each["dataset"] for each in run("sea")] == ["sea"]
    done = CliRunner().invoke(main.make_app(), ["timeline", "restore", "ocean", "1", "--cluster", str(file)])
    assert isinstance(done.exception, RequestError) and "has no dataset ocean" in done.exception.what
    with pytest.raises(RequestError, match="there is no dataset or table flights"):  # and no cluster
        run("flights")
    initialise(config.ledger_url, ClusterId("east", UUID(int=1)))
    with closing(open_ledger(config.ledger_url)) as ledger:
        ledger.tables.create(keyed("default.flights"))
        ledger.drills.put(Drill("d0", "h0", "p", 5, 9, ended=7))
    for words in (["files", "flights"], ["clean", "flights", "--keep-versions", "1"]):
        done = CliRunner().invoke(main.make_app(), ["timeline", *words, "--cluster", str(file)])
        assert isinstance(done.exception, RequestError) and "flights is a table" in done.exception.what
    done = CliRunner().invoke(main.make_app(), ["timeline", "list", "flights", "--cluster", str(file)])
    assert done.stdout.split() == [
        "event",
        "at",
        "action",
        "state",
        "completed",
        "d0",
        *moment_text(5).split(),
        "drill",
        "completed",
        "7",
    ]
    with pytest.raises(RequestError, match="there is no dataset or table ocean"):
        run("ocean")
    (drilled,) = run("flights")
    assert [drilled[name] for name in ("event", "action", "state", "completed")] == ["d0", "drill", "completed", 7]


@pytest.mark.parametrize("store", ["memory", "spillable", "embedded"])
def test_files_are_listed_and_cleaned_while_the_server_runs(tmp_path: Path, store: str) -> None:
    file, root = tmp_path / "walship.toml", tmp_path / "lake"
    file.write_text(configuration.default_toml("east", ".", timeline={"store": store}))
    config = configuration.load(file)
    timeline = configured_timeline(config)
    root.mkdir()
    versions = [FileVersion("", f"a-{number}", 1, "a") for number in range(2)]
    for before, version in zip((None, *versions), versions, strict=False):
        (root / version.path).write_text("x")
        replaces = (before.key,) if before else ()
        timeline.record(Action.COPY, "lake", Changes(adds=(version,), replaces=replaces), root=str(root))

    def run(*words: str) -> str:
        done = CliRunner().invoke(main.make_app(), ["timeline", *words, "--cluster", str(file)])
        assert done.exit_code == 0, done.exception
        return done.stdout

    with closing(configured_views(config, timeline)) as served:
        served.sync()
        assert "a-1" in run("files", "lake")
        assert "1 file of lake deleted" in run("clean", "lake", "--keep-versions", "1")
        with pytest.raises(LockedFileError):
            configured_views(config, timeline)  # a second server would write older files over newer ones
    assert [path.name for path in root.iterdir()] == ["a-1"]


def test_files_that_are_listed_are_of_one_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, root = tmp_path / "walship.toml", tmp_path / "lake"
    file.write_text(configuration.default_toml("east", "."))
    timeline = configured_timeline(configuration.load(file))

    def publish(name: str) -> None:
        versions = tuple(FileVersion(partition, f"{partition}/{name}", 1) for partition in ("p", "q"))
        for version in versions:
            (root / version.path).parent.mkdir(parents=True, exist_ok=True)
            (root / version.path).write_text("x")
        timeline.record(Action.COPY, "lake", Changes(adds=versions), root=str(root))

    publish("a")
    files = FolderListings.files

    def publish_before_the_second(self: FolderListings, dataset: str, at: str, partition: str) -> list[FileVersion]:
        if partition == "q":
            publish("b")
        return files(self, dataset, at, partition)

    monkeypatch.setattr(FolderListings, "files", publish_before_the_second)
    done = CliRunner().invoke(main.make_app(), ["timeline", "files", "lake", "--cluster", str(file), "--json"])
    assert [each["path"] for each in json.loads(done.stdout)] == ["p/a", "q/a"]


@pytest.mark.heavy
def test_a_listing_of_many_files_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "walship.toml"
    file.write_text(configuration.default_toml("east", "."))
    for dataset in ("pond", "lake"):
        timeline = configured_timeline(configuration.load(file))
        timeline.record(Action.COPY, dataset, Changes(), root=str(tmp_path / dataset))
    monkeypatch.setattr("peer.timeline.configured._VERB_BYTES", 1 << 20)
    monkeypatch.setattr("shell.cli.render._ROWS_AT_ONCE", 100)
    partitions = ["p000"]
    monkeypatch.setattr(FolderListings, "partitions", lambda self, dataset, root: partitions)
    monkeypatch.setattr(
        FolderListings,
        "files",
        lambda self, dataset, root, partition: [FileVersion(partition, f"{partition}/{n}", n) for n in range(500)],
    )

    def peak_of(dataset: str, lines: int) -> int:
        listed = tmp_path / "listed"
        with listed.open("w") as out, monkeypatch.context() as patched:
            patched.setattr("sys.stdout", out)
            tests_own = gc.get_threshold()
            gc.set_threshold(700, 10, 10)  # Python's, as in a command
            tracemalloc.start()
            try:
                main.make_app()(["timeline", "files", dataset, "--cluster", str(file)], standalone_mode=False)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
                gc.set_threshold(*tests_own)
        assert len(listed.read_text().splitlines()) == lines
        return peak

    peak_of("pond", 501)  # imports count, too
    few = peak_of("pond", 501)
    partitions.extend(f"p{n:03}" for n in range(1, 40))
    assert (many := peak_of("lake", 20_001)) < few + (2 << 20), (few, many)
