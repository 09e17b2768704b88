"""The Iceberg catalog: which tables there are, their views, and look-ups in SQL.

Needs neither Spark nor Java. Begin at ``catalog.py``.
"""
