"""Comparing a table on two clusters: real differences are reported, moving keys are not."""

import random
import tempfile
import threading

import pyarrow as pa
import pytest

from peer.verify.compare import compare
from peer.verify.digest import BUCKETS, Reading, content_hash, decode_buckets, digest_of, encode_buckets
from replication.errors import PeerRefusedError, PeerUnavailableError, RequestError, SchemaError
from replication.tables.base import open_duckdb

pytestmark = pytest.mark.heavy

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.float64())])


def table(*rows):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


class Side:
    """Shows one state after the other, the last for ever; replicated time is the number of readings."""

    def __init__(self, name, *states, key=("id",)):
        self.name = name
        self.states = list(states)
        self.reads = 0
        self.key = key
        self.asked = []

    def open(self, as_of):
        state = self.states[min(self.reads, len(self.states) - 1)]
        self.reads += 1
        self.asked.append(as_of)
        connection = open_duckdb()
        connection.register("rows", state)
        return Reading(connection, "rows", state.schema.names, self.key)

    def reached(self):
        return self.reads, 0


def judge(left, right, key=("id",), wait=lambda: True, **options):
    left.key = right.key = key
    values = [name for name in SCHEMA.names if name not in key]
    return compare("ops.t", key, left, right, wait, values=values, **options)


def test_the_same_rows_in_another_order_and_batching_are_the_same_and_take_no_file(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    rows = [(i, f"n{i}", i / 3) for i in range(1000)]
    shuffled = random.Random(7).sample(rows, len(rows))
    verdict = judge(Side("east", table(*rows)), Side("west", table(*shuffled)))
    assert verdict.same and verdict.identical and verdict.rounds == 1
    assert verdict.left.rows == verdict.right.rows == 1000


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((1, "a", None), (1, "a", float("nan"))),
        ((1, "a", 0.0), (1, "a", -0.0)),
        ((1, "", 1.0), (1, None, 1.0)),
        ((1, "a", 1.0), (1, "a\x00", 1.0)),
    ],
)
def test_values_that_look_alike_differ(one, two):
    verdict = judge(Side("east", table(one)), Side("west", table(two)))
    assert not verdict.same
    assert [(d.key, d.what) for d in verdict.differences] == [({"id": 1}, "different")]


def test_nan_equals_nan():
    assert judge(Side("east", table((1, "a", float("nan")))), Side("west", table((1, "a", float("nan"))))).same


def test_values_of_adjacent_columns_are_told_apart():
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    one = pa.Table.from_pylist([{"a": "1:x", "b": ""}], schema=schema)
    two = pa.Table.from_pylist([{"a": "1", "b": ":x"}], schema=schema)
    assert content_hash(one.to_reader()) != content_hash(two.to_reader())


def test_keys_on_one_side_only_are_listed_with_the_side():
    verdict = judge(
        Side("east", table((1, "a", 1.0), (2, "b", 2.0))), Side("west", table((2, "b", 2.0), (3, "c", 3.0)))
    )
    assert [(d.key["id"], d.what) for d in verdict.differences] == [(1, "only in east"), (3, "only in west")]


def test_a_row_that_arrives_meanwhile_is_not_reported():
    verdict = judge(Side("east", table((1, "new", 1.0))), Side("west", table((1, "old", 1.0)), table((1, "new", 1.0))))
    assert verdict.same and verdict.moving == 0 and verdict.rounds == 2


def test_a_row_that_changes_all_the_time_is_moving_and_not_reported():
    states = [table((1, f"v{i}", 1.0)) for i in range(10)]
    verdict = judge(Side("east", *states[1:]), Side("west", *states))
    assert verdict.same and verdict.moving == 1


def test_a_real_difference_beside_a_moving_row_is_reported_alone():
    east = [table((1, f"v{i}", 1.0), (2, "east", 0.0)) for i in range(1, 11)]
    west = [table((1, f"v{i}", 1.0), (2, "west", 0.0)) for i in range(10)]
    verdict = judge(Side("east", *east), Side("west", *west))
    assert [d.key["id"] for d in verdict.differences] == [2]
    assert (verdict.differing, verdict.moving) == (1, 1)


def test_a_side_is_not_asked_again_before_it_has_answered():
    class Slow(Side):
        answering = False

        def open(self, as_of):
            assert not self.answering
            self.answering = True
            answered.wait(0.5)
            self.answering = False
            return super().open(as_of)

        def reached(self):
            assert not self.answering
            return super().reached()

    class Refusing(Side):
        def open(self, as_of):
            self.reads += 1
            if self.reads == 1:
                raise RequestError("folded past it just now")
            return super().open(as_of)

    answered = threading.Event()
    rows = table((1, "a", 1.0))
    assert judge(Refusing("east", rows), Slow("west", rows)).same


def test_nothing_is_judged_while_replicated_time_does_not_advance():
    verdict = judge(Side("east", table((1, "a", 1.0))), Side("west", table((1, "b", 1.0))), wait=lambda: False)
    assert verdict.same and verdict.moving == 1 and not verdict.identical


def test_append_only_tables_are_compared_as_bags_of_rows():
    twice = table((1, "a", 1.0), (1, "a", 1.0))
    assert judge(Side("east", twice), Side("west", twice), key=()).same
    assert judge(Side("east", twice), Side("west", table((1, "a", 1.0))), key=()).differing == 1


def test_empty_tables_are_the_same():
    assert judge(Side("east", table()), Side("west", table())).same


def test_a_missing_key_column_is_named():
    with pytest.raises(SchemaError, match="nokey"):
        judge(Side("east", table()), Side("west", table()), key=("nokey",))


def test_the_columns_that_differ_are_named():
    verdict = judge(
        Side("east", table((1, "a", 1.0), (2, "b", 2.0))), Side("west", table((1, "x", 1.0), (2, "y", 3.0)))
    )
    assert [(d.key, d.columns) for d in verdict.differences] == [({"id": 1}, ("name",)), ({"id": 2}, ("name", "v"))]


def test_rows_of_tables_without_a_key_are_listed_whole():
    verdict = judge(Side("east", table((1, "a", None), (2, "b", 2.0))), Side("west", table((2, "b", 2.0))), key=())
    assert [(d.key, d.what) for d in verdict.differences] == [({"id": 1, "name": "a", "v": None}, "only in east")]


def test_both_sides_are_read_as_of_a_common_time():
    east, west = Side("east", table((1, "a", 1.0))), Side("west", table((1, "a", 1.0)))
    east.reached, west.reached = lambda: (70, 40), lambda: (60, 50)
    assert judge(east, west).upto == 60
    assert east.asked == west.asked == [60]
    west.reached = lambda: (60, 65)  # folded past what east has
    assert judge(east, west).upto == 0, "each is read as it is, so no time may be said"
    assert east.asked[1:] == west.asked[1:] == [None]


def test_a_difference_at_a_common_time_is_reported_though_time_does_not_advance():
    east, west = Side("east", table((1, "a", 1.0))), Side("west", table((1, "b", 1.0)))
    east.reached, west.reached = lambda: (70, 0), lambda: (60, 0)
    verdict = judge(east, west, wait=lambda: False)
    assert (verdict.differing, verdict.moving, verdict.rounds) == (1, 0, 2)


def test_a_fold_between_asking_and_reading_is_asked_again():
    east, west = Side("east", table((1, "a", 1.0))), Side("west", table((1, "a", 1.0)))
    times, reading = iter((50, 60)), west.open
    east.reached, west.reached = lambda: (70, 0), lambda: (next(times), 0)

    def folded(as_of):
        if as_of == 50:
            raise RequestError("folded up to 55")
        return reading(as_of)

    west.open = folded
    assert judge(east, west).identical
    assert west.asked == [60]


def test_only_buckets_that_differ_are_sent_and_few_bytes_when_nothing_does():
    rows = [(i, f"n{i}", float(i)) for i in range(50_000)]
    other = [*rows[:25_000], (25_000, "changed", 0.0), *rows[25_001:-1]]
    east, west = Side("east", table(*rows)), Side("west", table(*other))
    sent = []
    for side in (east, west):
        opening = side.open

        def counted(as_of, opening=opening):
            opened = opening(as_of)
            buckets, keys = opened.buckets, opened.keys
            opened.keys = lambda wanted: [sent.append(batch.num_rows) or batch for batch in keys(wanted)]
            opened.asked = lambda: sent.append(0) or buckets()
            return opened

        side.open = counted
    verdict = judge(east, west)
    assert [(d.key["id"], d.what) for d in verdict.differences] == [(25_000, "different"), (49_999, "only in east")]
    assert sum(sent) <= 2 * 2 * 2 * 60, "two rounds, two sides, two buckets of about 12 rows"
    assert len(encode_buckets(east.open(None).buckets())) <= 26 * BUCKETS


def test_a_side_that_stops_in_the_middle_of_its_keys_is_asked_again():
    east, west = Side("east", table((1, "a", 0.0))), Side("west", table((1, "b", 0.0)))
    opening, failures = west.open, [PeerRefusedError("maintenance deleted a file"), PeerUnavailableError("gone")]

    def opened(as_of):
        made = opening(as_of)
        keys = made.keys

        def some(buckets):
            yield from keys(buckets)
            if failures:
                raise failures.pop(0)

        made.keys = some
        return made

    west.open = opened
    with pytest.raises(PeerUnavailableError, match="gone"):
        judge(east, west)
    assert [(d.key["id"], d.what) for d in judge(east, west).differences] == [(1, "different")]


def test_a_difference_is_reported_though_a_side_stopped_in_the_middle_of_the_round_that_confirms_it():
    east, west = Side("east", table((1, "a", 0.0))), Side("west", table((1, "b", 0.0)))
    east.reached, west.reached = lambda: (70, 0), lambda: (60, 0)
    opening = west.open

    def opened(as_of):
        made = opening(as_of)
        if west.reads == 2:

            def stopping(_):
                raise PeerRefusedError("maintenance deleted a file")
                yield

            made.keys = stopping
        return made

    west.open = opened
    verdict = judge(east, west, wait=lambda: False)
    assert (verdict.differing, verdict.moving, verdict.rounds) == (1, 0, 2)


def test_buckets_survive_their_bytes_and_sum_up_to_the_whole():
    reading = Side("east", table(*[(i, "x", None) for i in range(500)])).open(None)
    buckets = reading.buckets()
    assert decode_buckets(encode_buckets(buckets)) == buckets
    assert digest_of(buckets) == reading.digest()
    assert (reading.digest().rows, reading.digest().content) == content_hash(
        table(*[(i, "x", None) for i in range(500)]).to_reader()
    )
    reading.close()
