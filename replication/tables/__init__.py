"""Iceberg tables: catalog, reads, and commits by compare-and-swap, with or without Spark.

Guarantees: a commit is refused when somebody else's came between, and what the catalog names is on the disk. Begin at
``base.py`` (the two protocols) and ``layout.py`` (which Iceberg tables a table has).
"""
