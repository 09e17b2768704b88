"""Whatever is written, folded, killed and changed: a derived table ends as its hook makes it of the source, once."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from replication.core.definition.define import typed_table
from tests.budget import examples
from tests.deriving import DerivingSite, Killed
from tests.tables_made import uuids

SCHEMA = pa.schema([("id", pa.int64()), ("who", pa.string()), ("n", pa.int32())])
KILLS = ("write", "amid", "written", "wait", "settle")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 9), st.integers(0, 1)),
        st.tuples(st.just("delete"), st.integers(0, 5), st.just(0), st.integers(0, 1)),
        st.tuples(st.just("derive"), st.sampled_from(("", *KILLS)), st.just(0), st.just(0)),
        st.tuples(st.just("fold"), st.integers(0, 1), st.just(0), st.just(0)),
        st.tuples(st.just("hook"), st.integers(1, 9), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=14,
)


@examples(5)
@given(steps)
def test_a_derived_table_ends_as_its_hook_makes_it(schedule: list) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        site = DerivingSite(Path(folder), "east", stack)
        spec = typed_table("ops.people", SCHEMA, ["id"], uuids=uuids())
        site.ledger.tables.create(spec)
        bound = 5
        public = site.define("ops.public", "ops.people", "select", {"where": f"n < {bound}", "null": "who"})
        wals = [site.wal("w0"), site.wal("w1")]
        wals[1].ahead_us = 60_000_000  # so that what w0 writes later is often older
        for verb, one, two, wal in schedule:
            match verb:
                case "put":
                    row = {"id": one, "who": f"{one}", "n": two}
                    wals[wal].append(spec, pa.Table.from_pylist([row], SCHEMA))
                case "delete":
                    wals[wal].delete(spec, [{"id": one}])
                case "derive":
                    site.kill_at = one
                    with suppress(Killed):
                        site.derive(public)
                    site.kill_at = ""
                case "fold":
                    site.catch_up()
                    if site.tables.exists((spec, public)[one].name):
                        site.fold((spec, public)[one])
                case "hook":
                    bound = one
                    site.define("ops.public", options={"where": f"n < {bound}", "null": "who"})
        site.derive(public)
        wanted = [{**row, "who": None} for row in site.shown(spec) if row["n"] < bound]
        assert site.shown(public) == wanted
        if site.tables.exists("ops.public__changes"):
            changes = site.tables.query('select id, n, _op from "ops.public__changes" where _op >= 0 order by _commit')
            last: dict[int, tuple] = {}
            for change in changes.to_pylist():
                now = (change["_op"], change["n"])
                assert last.get(change["id"]) != now, "nothing is written that was there"
                last[change["id"]] = now
        assert site.derive(public) == 0
