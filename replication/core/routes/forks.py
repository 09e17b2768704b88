"""Telling a cluster from a copy of it. Pure.

Every time a ledger's term is raised it draws a mark. Two clusters that go on from copies of one ledger draw different
marks for the same term, so whoever remembers the newest mark of a cluster notices when the other one speaks.
"""

from __future__ import annotations

TERM_HISTORY_MAX = 64

#: (term, mark), oldest first, of the newest terms.
TermHistory = tuple[tuple[int, str], ...]


def contradiction(kept: tuple[int, str] | None, term_history: TermHistory) -> str:
    """Why ``term_history`` is not of the cluster whose newest term and nonce were ``kept``; "" if it may be."""
    if kept is None or not term_history:
        return ""
    term, mark = kept
    if term_history[-1][0] < term:
        return f"it had term {term} already and says {term_history[-1][0]}"
    if dict(term_history).get(term, mark) != mark:
        return f"two ledgers have had term {term}"
    return ""
