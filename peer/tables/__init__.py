"""The tables that users query: latest rows, fold, maintenance, reads and traces.

Guarantees: all readers use one definition of "the newest version" (``latest.py``), in Spark and in DuckDB. Readers see
a fold in one step. Begin at ``read.py`` and ``fold.py``.
"""
