"""Where views are kept: in memory, in memory up to a bound, or in an embedded key-value store.

Guarantees: what ``apply`` and ``put`` write is there with the state they name, or not at all, after a kill. A store that
is lost is made anew from listings. Begin at ``base.py``.
"""
