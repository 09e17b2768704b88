"""Whether two clusters hold the same rows: digests of tables, and who answers for a cluster."""
