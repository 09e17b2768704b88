"""Copies of a cluster: whoever remembers its newest mark tells them from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replication.core.routes.forks import TERM_HISTORY_MAX, contradiction

terms = st.integers(1, 40)


def raised(name: str, upto: int, since: int = 0) -> list[tuple[int, str]]:
    return [(term, f"{name}{term}") for term in range(since + 1, upto + 1)]


@given(terms, st.integers(0, 100))
def test_a_cluster_that_goes_on_never_contradicts_itself(seen: int, more: int) -> None:
    kept = raised("a", seen)[-1]
    assert not contradiction(kept, tuple(raised("a", seen + more)[-TERM_HISTORY_MAX:]))
    assert not contradiction(None, tuple(raised("a", seen)))


@given(terms, terms, st.integers(1, 40))
def test_a_copy_that_has_raised_its_term_is_told_from_what_was_copied(common: int, seen: int, copied: int) -> None:
    kept = raised("a", common + seen)[-1]
    copy = (*raised("a", common), *raised("b", common + copied, common))
    assert contradiction(kept, copy[-TERM_HISTORY_MAX:])


@given(terms, terms)
def test_a_backup_that_has_not_raised_its_term_is_behind(seen: int, more: int) -> None:
    assert "had term" in contradiction(raised("a", seen + more)[-1], tuple(raised("a", seen)))
