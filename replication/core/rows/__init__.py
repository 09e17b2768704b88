"""Rows as callers give them and as the log keeps them: exact conversion to and from Arrow.

Guarantees: a value is stored exactly or refused by its column's name. Equal rows are equal bytes (``canonical.py``).
Begin at ``convert.py``, from callers' rows to log batches, and ``batch.py``, from log batches to payloads.
"""
