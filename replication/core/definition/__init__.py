"""Table definitions, and how they change on clusters independently.

Guarantees: definitions join in any order to the same result (``evolution.py``). A column is identified by its uuid; its
name may change. Begin at ``schema.py``.
"""
