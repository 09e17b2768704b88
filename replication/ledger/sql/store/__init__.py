"""Connections, transactions, prepared statements and integer keys."""
