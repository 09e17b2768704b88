"""Tables that a hook makes of other tables: rows dropped, columns masked, before anything leaves the cluster.

Guarantees: a row that the hook drops is in no byte of the derived table. A hook that fails holds its own table. What it
writes goes through a WAL. Begin at ``role.py``, then ``turn.py``.
"""
