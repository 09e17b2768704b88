"""Mutations of cell tables, and how old their timestamps may be."""

from __future__ import annotations

import pytest

from replication.core.rows.mutation import Mutation
from replication.errors import ConditionalMutationError, HistoryError, SchemaError
from tests.contract.ledger_stores import NORTH, Route, claims, stream, wal
from tests.unit.writer.site import Site
from tests.waiting import wait_until


def test_cell_mutations(site: Site) -> None:
    with site.writer() as writer:
        writer.apply(site.cells, Mutation("r").put("f", "q", "v").delete("f", "p"))
        writer.apply(site.cells, [Mutation("s").put("f", "q", "v", "public")])
        assert [(row["row"], row["_op"], row["visibility"]) for row in site.logged(site.cells)] == [
            (b"r", 0, ""),
            (b"r", 1, ""),
            (b"s", 0, "public"),
        ]
        with pytest.raises(HistoryError):
            writer.apply(site.cells, Mutation("r").put("f", "q", "v", timestamp=1))
        with pytest.raises(ConditionalMutationError):
            writer.apply(site.cells, Mutation("r").condition("f", "q").put("f", "q", "v"))
        with pytest.raises(SchemaError, match="not a cell table"):
            writer.apply(site.table, Mutation("r").put("f", "q", "v"))
        assert len(site.logged(site.cells)) == 3


def test_how_old_a_user_timestamp_may_be_is_reckoned_from_commit_times_when_they_are_ahead(site: Site) -> None:
    now = 1_700_000_000_000_000
    site.now = lambda: now
    hour, history = 3_600_000_000, site.cells.history_s * 1_000_000
    with site.writer() as writer:
        writer.apply(site.cells, Mutation("r").put("f", "q", "v", timestamp=now - history))
        ahead = Route(site.ledger, wal(0, NORTH))
        ahead.land(claims(stream(site.table, ahead.source), 0, 1, 0, commit=now + hour))
        wait_until(lambda: writer.upsert(site.table, [{"k": 1}]).commit > now + hour)
        with pytest.raises(HistoryError, match="older|old"):
            writer.apply(site.cells, Mutation("r").put("f", "q", "v", timestamp=now - history))
        writer.apply(site.cells, Mutation("r").put("f", "q", "v", timestamp=now - history + hour + 60_000_000))
        assert site.ledger.time.seen() == now + hour, "a user's timestamp moves no clock"
