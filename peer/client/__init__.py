"""The user's handle on a cluster, and what it needs: peers, definitions, waiting, operations.

Promises: the public API of ``walship.py``. A call says what is durable when it returns. Begin at ``connect.py`` and
``cluster.py``.
"""
