"""Spark session, Iceberg catalog, reads and commits; the jars and Java they need."""
