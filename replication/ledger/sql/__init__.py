"""The ledger over SQL: SQLite for one host, PostgreSQL for many, in memory for tests.

From below: ``store`` (connections and transactions), ``schema`` (tables and triggers), ``queries`` (a connection in,
values out, no transaction), ``parts`` (one class a protocol). Begin at ``ledger.py``, which composes them.
"""
