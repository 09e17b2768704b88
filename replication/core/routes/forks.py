"""Telling a cluster from a copy of it. Pure.

A ledger draws a random nonce each time its term rises. Two clusters that go on from copies of one ledger draw different
nonces for the same term. A receiver that remembers a cluster's newest nonce therefore notices the copy.
"""

from __future__ import annotations

TERM_HISTORY_MAX = 64

#: (term, nonce), oldest first, of the newest terms.
TermHistory = tuple[tuple[int, str], ...]


def contradiction(kept: tuple[int, str] | None, term_history: TermHistory) -> str:
    """Why ``term_history`` is not of the cluster whose newest term and nonce were ``kept``; "" if it may be."""
    if kept is None or not term_history:
        return ""
    term, nonce = kept
    if term_history[-1][0] < term:
        return f"it had term {term} already and says {term_history[-1][0]}"
    if dict(term_history).get(term, nonce) != nonce:
        return f"two ledgers have had term {term}"
    return ""
