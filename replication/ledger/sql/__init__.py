"""The ledger over SQL: SQLite for one host, PostgreSQL for many, in memory for tests."""
