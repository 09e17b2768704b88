"""Rows that were there before a table was sent: read at one cluster, applied all at once by another.

Guarantees: each row counts once beside frames that arrive meanwhile, since the coverage of the rows comes with them.
Begin at ``export.py`` (the source) and ``arrived.py`` (the peer).
"""
