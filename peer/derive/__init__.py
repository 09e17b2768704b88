"""Derived tables: a hook drops rows or masks columns of a table before anything leaves the cluster.

Guarantees: a row that the hook drops is in no byte of the derived table. A hook that fails stops its own table only.
Derived rows are written through a WAL. Begin at ``role.py``, then ``deriver.py``.
"""
