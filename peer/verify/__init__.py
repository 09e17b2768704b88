"""Whether two clusters hold the same rows: digests of tables, and the process that answers for a cluster.

Guarantees: both sides read as of one replicated time, in bounded memory, and only differing keys travel. Begin at
``compare.py``.
"""
