"""Iceberg tables: catalog, reads, and commits by compare-and-swap, with or without Spark.

Guarantees: a commit is refused when another one came in between. Files that the catalog names are durable. Begin at
``base.py`` (the two protocols) and ``layout.py`` (the Iceberg tables of a walship table).
"""
