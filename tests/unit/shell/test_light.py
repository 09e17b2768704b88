"""Commands load what they use: not Arrow, structlog, kazoo or pydantic-settings before they need them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from replication import config
from replication.core.definition.define import cell_table
from replication.core.ids import ClusterId
from replication.ledger.sql.ledger import initialise, open_ledger

pytestmark = pytest.mark.heavy

HEAVY = (
    *("numpy", "pyarrow", "structlog", "kazoo", "grpc", "google.protobuf", "duckdb", "pyiceberg", "psutil"),
    *(
        "pydantic_settings",
        "prompt_toolkit",
        "rich.progress",
        "replication.writer.writer",
        "peer.tables.read",
        "peer.status.collect",
    ),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    file = tmp_path / "walship.toml"
    file.write_text(config.default_toml("east"))
    url = config.load(file).ledger_url
    initialise(url, ClusterId("east", uuid4()))
    ledger = open_ledger(url)
    ledger.tables.create(cell_table("ops.flights", uuids=iter(uuid4, None)))
    ledger.close()
    return file


def loaded(script: str) -> str:
    told = f"import sys\n{script}\nprint(sorted(set({HEAVY}) & set(sys.modules)), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr.strip()


@pytest.mark.parametrize("words", [["listtables"], ["listtables", "--json"], ["listclusters"]])
def test_a_verb_loads_only_what_it_uses(cluster: Path, words: list[str]) -> None:
    assert loaded(f"from shell.main import run\nrun(['--cluster', {str(cluster)!r}, *{words}])").endswith("[]")


def test_the_library_opens_a_cluster_without_arrow(cluster: Path) -> None:
    opened = f"import walship\nwith walship.connect({str(cluster)!r}, for_writing=False) as c: print(len(c.tables()))"
    assert loaded(opened) == "[]"


def test_columns_are_decoded_when_they_are_used(cluster: Path) -> None:
    used = f"import walship\nwith walship.connect({str(cluster)!r}, for_writing=False) as c: c.tables()[0].columns"
    assert loaded(used) == "['numpy', 'pyarrow']"
