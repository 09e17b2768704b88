"""Role changes between clusters: switchover loses nothing, failover says what it loses before it does anything.

Both are commit sequences with the URN ``role``: killed anywhere and run again, they finish. Promises: the origin takes
no writes before its successor does; a cluster that was down steps down before it takes writes (``replication/roles``).
Begin at ``switchover.py`` and ``failover.py``; ``lost_writes.py`` has what a failover left behind, and ``failback.py``
brings the lost cluster back.
"""
