"""The Iceberg catalog: where tables are, their views, and look-ups in SQL."""
