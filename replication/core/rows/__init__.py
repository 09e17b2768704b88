"""Convert callers' rows to log batches and payloads, and back, without loss.

Guarantees: a value is stored exactly, or refused with its column's name. Equal rows give equal bytes
(``canonical.py``). Begin at ``convert.py``, from callers' rows to log batches, and ``batch.py``, from log batches to
payloads.
"""
