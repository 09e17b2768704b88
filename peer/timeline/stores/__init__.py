"""Where views are kept: in memory, in memory up to a bound, or in an embedded key-value store.

Guarantees: after a kill, what ``apply`` and ``put`` wrote is there with the state they name, or not at all. A store
that is lost is made anew from listings. Begin at ``base.py``.
"""
