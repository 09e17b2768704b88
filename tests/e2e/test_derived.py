"""Derived tables between whole clusters: their role starts by itself and is killed, and west has what passes."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa

from tests.e2e.conftest import plugged_in
from tests.waiting import wait_until

ROWS = 3_000


def test_what_a_hook_leaves_arrives_though_its_role_is_killed(sites):
    east, west = sites
    name = f"e2e.people{uuid4().hex[:8]}"
    east.shell("createtable", name, "id long, who string, n int", "--key", "id")
    options = ("-o", "where=n < 100", "-o", "null=who")
    told = east.json("derivetable", f"{name}_out", "--from", name, "--hook", "select", *options)
    assert told["derived"] == "at east"
    assert "by this hook already" in east.shell("derivetable", f"{name}_out", *options)
    east.shell("enablereplication", "-t", f"{name}_out", "west")
    with east.connect() as here, west.connect() as there:
        for begin in range(0, ROWS, 500):
            ids = range(begin, begin + 500)
            here.upsert(name, pa.table({"id": ids, "who": ["secret"] * 500, "n": [i % 200 for i in ids]}))
            if begin == 1000:
                wait_until(lambda: east.ready("derive"), timeout_s=400, what="the derive role")
                wait_until(
                    lambda: here.read(f"{name}_out").read_all().num_rows, timeout_s=400, what="the first derived rows"
                )
                old = east.kill("derive")
                wait_until(
                    lambda old=old: east.ready("derive", other_than=old), timeout_s=400, what="the derive role again"
                )
        here.delete(name, [{"id": 7}])
        wanted = {i for i in range(ROWS) if i % 200 < 100} - {7}

        def shown():
            if f"{name}_out" not in [spec.name for spec in there.tables()]:
                return None
            return there.read(f"{name}_out").read_all().to_pylist()

        wait_until(
            lambda: {row["id"] for row in shown() or ()} == wanted, timeout_s=400, what="west to have what passes"
        )
        assert {row["who"] for row in shown()} == {None}
        assert name not in [spec.name for spec in there.tables()]
    (derived,) = [row for row in east.json("status")["derived"] if row["table"] == f"{name}_out"]
    assert (derived["source"], derived["hook"], derived["error"]) == (name, "select", "")
    refused = west.shell("write", f"{name}_out", "-", "--format", "json", code=4, stdin='{"id": 1}')
    assert "derived from another table at cluster east" in refused
    assert east.json("droptable", name)["derived"] == [f"{name}_out"]


def test_a_hook_of_another_package_is_found_shown_and_holds_only_its_own_table(sites):
    east, west = sites
    name = f"e2e.ages{uuid4().hex[:8]}"
    east.shell("createtable", name, "id long, n int", "--key", "id")
    derive = ("derivetable", f"{name}_out")
    with plugged_in():
        assert "rounded" in east.shell(*derive, "--from", name, "--hook", "no_such_hook", code=4)
        east.shell(*derive, "--from", name, "--hook", "rounded", "-o", "step=10", "-o", "fail=yes")
    east.shell("enablereplication", "-t", f"{name}_out", "west")
    east.shell("enablereplication", "-t", name, "west")

    def derived():
        (found,) = [row for row in east.json("status")["derived"] if row["table"] == f"{name}_out"]
        return found

    with east.connect() as here, west.connect() as there:
        here.wait(here.upsert(name, [{"id": 1, "n": 17}, {"id": 2, "n": None}]), cluster="west", timeout_s=400)
        wait_until(
            lambda: "told to fail" in derived()["error"], timeout_s=400, what="status to say what the hook raised"
        )
        assert there.read(f"{name}_out").read_all().num_rows == 0
        with plugged_in():
            east.shell(*derive, "-o", "step=5")
        here.upsert(name, [{"id": 3, "n": 23}])
        wanted = [{"id": 1, "n": 15}, {"id": 3, "n": 20}]

        def shown():
            return sorted(there.read(f"{name}_out").read_all().to_pylist(), key=lambda row: row["id"])

        wait_until(lambda: shown() == wanted, timeout_s=400, what="west to have what the hook makes")
    assert (derived()["hook"], derived()["error"]) == ("rounded", "")
