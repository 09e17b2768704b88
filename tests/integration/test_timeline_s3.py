"""The timeline of a dataset in S3 whose address alone does not say where it is."""

from __future__ import annotations

import json
import pickle
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from peer.timeline.configured import configured_timeline, configured_views
from peer.timeline.reading.dataset import dataset
from peer.timeline.reading.rows import schema_of
from replication import config as configuration
from replication.core.copying.names import ROOT
from replication.datasets.stores.open import open_store
from shell import main
from tests.copying import write_tree
from tests.file_servers import s3_server

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_verbs_of_the_timeline_open_a_dataset_with_the_options_of_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # where S3 is without options
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.chdir(tmp_path)
    cluster = tmp_path / "walship.toml"
    cluster.write_text(configuration.default_toml("east", "."))
    on = ("--cluster", str(cluster))

    def run(*words: str) -> str:
        done = CliRunner().invoke(main.make_app(), [*words, "--json"])
        assert done.exit_code == 0, done.exception
        return done.stdout

    with s3_server() as (url, options):
        given = [f"--target-option={name}={value}" for name, value in {**options, "secret": "$SECRET"}.items()]
        write_tree(tmp_path, {"src/a": b"1"})
        run("dataset", "add", "lake", str(tmp_path / "src"), f"{url}/lake", *given, "-o", "versions=true", *on)
        for content in (b"1", b"n\n"):
            write_tree(tmp_path, {"src/a": content})
            run("dataset", "run", "lake")
        assert (files := json.loads(run("timeline", "files", "lake", *on))) and files[0]["bytes"] == 2
        config = configuration.load(cluster)
        with closing(configured_views(config, configured_timeline(config))) as served:
            served.refresh("lake")
            assert len(served.all("lake", "")) == 2, "as the server answers"
        with dataset("lake", cluster).files() as found:
            assert found.rows("csv").schema.names == ["n"] and "endpoint" not in repr(found.read_instant)
            sent = pickle.loads(pickle.dumps(found.read_instant))
            assert schema_of(sent, found.versions, "csv").names == ["n"]
        assert '"deleted": 1' in run("timeline", "clean", "lake", "--keep-versions", "1", *on)
        with open_store(f"{url}/lake", options) as store:
            assert len(list(store.scan(ROOT))) == 1
