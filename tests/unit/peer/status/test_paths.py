"""What ``status`` tells of the paths by which origins come, when some are silent."""

from __future__ import annotations

from uuid import UUID

from peer.status.paths import InboundPath, paths, silent_path_messages
from replication.core.ids import ClusterId
from replication.core.routes.carried import Carried, InboundRoute

A, B, C = (ClusterId(name, UUID(int=n)) for n, name in enumerate("abc"))
NOW, LONG_AGO = 100_000_000, 60_000_000
TABLES = {UUID(int=n): f"ops.t{n}" for n in range(9)}


def by_b(table: int, *, last_seen: int = NOW) -> InboundRoute:
    """A route from b that carries a's frames."""
    return InboundRoute(B, UUID(int=table), "default", 1, carried=(Carried(A, (A, B)),), last_seen=last_seen)


def by_a(table: int) -> InboundRoute:
    return InboundRoute(A, UUID(int=table), "default", 1, last_seen=NOW)


def test_all_heard_tells_nothing() -> None:
    found = paths([by_b(1), by_a(1)], C, NOW, TABLES)
    assert [str(way) for way in found[A]] == ["a → c", "a → b → c"]
    assert silent_path_messages("a", found[A]) == []


def test_what_has_another_route_comes_by_it() -> None:
    direct, around = paths([by_b(1, last_seen=LONG_AGO), by_a(1)], C, NOW, TABLES)[A]
    assert around == InboundPath(("a", "b", "c"), 1, 40.0, (), (("a", "c"),)) and direct.silent_s is None
    (told,) = silent_path_messages("a", (direct, around))
    assert told.endswith("silent for 40 s (down, paused or unreachable); it comes by a → c")


def test_tables_that_have_no_other_route_are_named() -> None:
    found = paths([*(by_b(n, last_seen=LONG_AGO) for n in range(8)), by_a(1), by_a(8)], C, NOW, TABLES)
    (told,) = silent_path_messages("a", found[A])
    named = "ops.t0, ops.t2, ops.t3, ops.t4, ops.t5 and 2 more"
    assert (
        f"there is no other route for {named}, so replicated time stands still there; the rest comes by a → c" in told
    )
    (of_b,) = silent_path_messages("b", found[B])
    assert of_b.endswith("there is no other route, so its replicated time stands still")


def test_a_heard_route_of_other_tables_is_no_other_route() -> None:
    found = paths([by_b(1, last_seen=LONG_AGO), by_a(2)], C, NOW, TABLES)
    (told,) = silent_path_messages("a", found[A])
    assert "there is no other route" in told and "a → c" not in told
