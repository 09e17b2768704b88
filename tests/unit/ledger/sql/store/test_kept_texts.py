"""Results of functions of texts are kept as long as the texts are small together."""

from __future__ import annotations

from dataclasses import replace

from replication.core.coverage import Ranges
from replication.core.definition.schema import Setting
from replication.ledger.sql.store.kept_texts import kept_by_size
from replication.ledger.sql.store.keys import table_spec
from tests.hostile import memory_below
from tests.tables_made import keyed


def test_the_texts_that_were_used_last_are_read_once() -> None:
    read: list[str] = []

    @kept_by_size(3000)
    def length(one: str, two: str) -> int:
        read.append(one)
        return len(one + two)

    for texts in (("a", "b" * 1000), ("c", "d" * 1000), ("a", "b" * 1000), ("e", "f" * 1000), ("a", "b" * 1000)):
        assert length(*texts) == 1001
    assert read == ["a", "c", "e"]
    assert length("c", "d" * 1000) == 1001 and read[-1] == "c", "the one that was used least lately was let go"
    for _ in range(2):
        assert length("g", "h" * 4000) == 4001
    assert read[-2:] == ["g", "g"], "one that is too large is not kept"


def test_a_definition_that_a_peer_changes_again_and_again_takes_little() -> None:
    """Each change of four megabytes stayed in the memory of all processes, sixty thousand of them."""
    spec = keyed("ops.large")
    with memory_below(300):
        for at in range(150):
            table_spec(replace(spec, settings={"write.parquet.x": Setting("x" * (2 << 20), at)}).to_json())
    assert table_spec(spec.to_json()) is table_spec(spec.to_json()), "equal texts give one object"


def test_ranges_that_a_peer_reports_in_thousands_of_pieces_take_little() -> None:
    """As many as a receiver that answers as it likes makes up with each stream, for each file."""
    with memory_below(80):
        for at in range(50):
            ranges = Ranges(tuple((at + 2 * n, at + 2 * n + 1) for n in range(20_000)))
            assert Ranges.from_json(ranges.to_json()) == ranges
