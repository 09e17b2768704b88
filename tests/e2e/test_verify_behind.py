"""Scenario 6 through the command line: a table changed at the peer behind its back, with no way to its files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from replication.tables.catalog.catalog import catalog_properties
from tests.e2e.commands import ROOT
from tests.e2e.conftest import Site
from tests.waiting import wait_until

ROWS = 2000


def without(hidden: Site) -> list[str]:
    """What to put before a command so that it cannot see a cluster's files: a mount namespace of its own."""
    command = ["unshare", "--mount", "--propagation", "private"]
    command += [] if os.geteuid() == 0 else ["--map-root-user"]
    hide = 'mount -t tmpfs none "$0" && exec "$@"'
    command += ["sh", "-c", hide, str(hidden.config.data_dir)]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not here, to hide the peer's files from the command")
    tried = subprocess.run([*command, "ls", str(hidden.config.data_dir)], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no mount namespace here to hide the peer's files in: {tried.stderr.strip()}")
    assert tried.stdout == ""
    return command


def verify(site: Site, peer: Site, *arguments: str, code: int) -> list[dict]:
    command = [*without(peer), sys.executable, "-m", "shell.main", "--cluster", str(site.file), "verify", *arguments]
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def test_rows_changed_removed_and_added_behind_the_peers_back_are_listed_without_its_files(east, west):
    without(west)
    name = f"verify.t{uuid4().hex[:8]}"
    rows = [{"id": n, "text": f"text {n}", "value": n / 7} for n in range(ROWS)]
    east.shell("createtable", name, "id long, text string, value double", "--key", "id")
    east.shell("enablereplication", "-t", name, "west")
    text = "\n".join(map(json.dumps, rows))
    east.shell("write", name, "-", "--format", "json", "--wait", "west", "--timeout-s", "400", stdin=text)
    catalog = load_catalog("walship", **catalog_properties(west.config.data_dir).pyiceberg)

    def is_folded() -> bool:  # a fold takes what lies before the replicated time, which follows within seconds
        west.shell("fold", name)
        return bool(catalog.load_table(name).scan().count() == ROWS)

    wait_until(is_folded, what="the fold of all rows")
    (before,) = verify(east, west, "west", name, code=0)
    assert (before["left"]["rows"], before["right"]["rows"], before["differing"], before["moving"]) == (
        ROWS,
        ROWS,
        0,
        0,
    )

    table = catalog.load_table(name)
    kept = table.scan(row_filter=f"id in (0, 777, {ROWS - 1})").to_arrow().to_pylist()
    with warnings.catch_warnings(action="ignore"):
        table.delete(f"id in (0, 777, {ROWS - 1}, 1, 1000, {ROWS - 2})")
    changed = [{**row, "text": "by hand"} for row in kept]
    added = [{**kept[0], "id": number, "text": "new"} for number in (-1, ROWS)]
    table.append(pa.Table.from_pylist([*changed, *added], schema=table.schema().as_arrow()))

    wanted = {(number, "different") for number in (0, 777, ROWS - 1)}
    wanted |= {(number, "only in east") for number in (1, 1000, ROWS - 2)}
    wanted |= {(number, "only in west") for number in (-1, ROWS)}
    (verdict,) = verify(east, west, "west", name, code=10)
    assert {(found["key"]["id"], found["what"]) for found in verdict["differences"]} == wanted
    assert all(found["columns"] == ["text"] for found in verdict["differences"] if found["what"] == "different")
    assert verdict["differing"] == len(wanted)
    east.shell("write", name, "-", "--format", "json", "--wait", "west", "--timeout-s", "400", stdin=text)
    (after,) = verify(east, west, "west", name, code=10)  # what was written since hides what was changed and removed
    assert {found["key"]["id"] for found in after["differences"]} == {-1, ROWS}
