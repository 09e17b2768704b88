"""Telling a cluster from a copy of it. Pure.

Every time a ledger's term is raised it draws a mark. Two clusters that go on from copies of one ledger draw different
marks for the same term, so whoever remembers the newest mark of a cluster notices when the other one speaks.
"""

from __future__ import annotations

LINEAGE_MAX = 64

#: (term, mark), oldest first, of the newest terms.
Lineage = tuple[tuple[int, str], ...]


def contradiction(kept: tuple[int, str] | None, lineage: Lineage) -> str:
    """Why whoever has ``lineage`` is not the cluster that had ``kept``, its newest term and mark; "" when it may be."""
    if kept is None or not lineage:
        return ""
    term, mark = kept
    if lineage[-1][0] < term:
        return f"it had term {term} already and says {lineage[-1][0]}"
    if dict(lineage).get(term, mark) != mark:
        return f"two ledgers have had term {term}"
    return ""
