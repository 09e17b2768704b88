"""``timeline list`` and ``timeline files``: what was done to a dataset, and its files as of any instant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from peer.timeline.configured import configured_timeline
from replication import config as configuration
from replication.core.timeline.instants import Action, Changes, FileVersion
from replication.timeline.recorded import RecordedTimeline
from shell import main


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

    with monkeypatch.context() as patch:
        patch.delattr(RecordedTimeline, "since")  # which gives all events at once
        listed = run("list")
    assert [(each["action"], each["state"], each["dataset"]) for each in listed] == [("copy", "completed", "lake")] * 2
    assert [each["path"] for each in run("files", "lake")] == ["p/b"]
    assert [each["path"] for each in run("files", "lake", "--as-of", str(one.time))] == ["p/a"]
