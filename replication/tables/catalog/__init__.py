"""The Iceberg catalog: its tables and views, and fast lookups of tables in SQL.

Needs neither Spark nor Java. Begin at ``catalog.py``.
"""
