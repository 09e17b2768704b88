"""The user's handle on a cluster, and what it needs: peers, definitions, waiting, operations.

This is the public API behind ``walship.py``. Each call documents what is durable when it returns. Begin at
``connect.py`` and ``cluster.py``.
"""
