"""Iceberg tables read with DuckDB, without Spark or Java."""
