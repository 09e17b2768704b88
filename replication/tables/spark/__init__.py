"""Spark: its jars and session, and commits to Iceberg tables through it.

Guarantees: jars are checked against pinned sums. A commit by Spark is synced before it counts. Begin at
``iceberg.py``; ``session.py`` starts Spark.
"""
