"""Tell a cluster from a copy of it. Pure.

A ledger draws a random nonce each time its term rises. Two clusters that continue from copies of one ledger draw
different nonces for the same term. So a receiver that stores a cluster's newest nonce detects the copy.
"""

from __future__ import annotations

TERM_HISTORY_MAX = 64

#: (term, nonce) of the newest terms, oldest first.
TermHistory = tuple[tuple[int, str], ...]


def contradiction(kept: tuple[int, str] | None, term_history: TermHistory) -> str:
    """Return why ``term_history`` is not that of the cluster whose newest (term, nonce) was ``kept``, or ""."""
    if kept is None or not term_history:
        return ""
    term, nonce = kept
    if term_history[-1][0] < term:
        return f"it had term {term} already, and now reports term {term_history[-1][0]}"
    if dict(term_history).get(term, nonce) != nonce:
        return f"two ledgers have had term {term}"
    return ""
