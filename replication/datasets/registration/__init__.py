"""Registers published files with somebody else, such as a table's catalog. Begin at ``base.py``."""
