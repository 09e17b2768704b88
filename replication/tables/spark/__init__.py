"""Spark: its jars and session, and commits to Iceberg tables through it.

Guarantees: jars are checked against pinned sums, and no commit of Spark's counts before it is synced. Begin at
``iceberg.py``; ``session.py`` starts Spark.
"""
