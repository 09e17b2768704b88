"""Spark: its jars and session, and commits to Iceberg tables through it."""
