"""Bootstrap: one cluster reads the rows that a table had before it was sent; the peer applies them in one commit.

Guarantees: each row counts once beside frames that arrive meanwhile, since the coverage of the rows is sent with them.
Begin at ``export.py`` (the source) and ``received.py`` (the peer).
"""
