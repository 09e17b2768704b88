"""Who originates: a cluster takes over from another one, or learns that another one took over from it.

Guarantees: a succession is in the ledger before the role changes, so an older epoch is refused before the new one is
used. Each call can be repeated after a crash. Begin at ``takeover.py``.
"""
