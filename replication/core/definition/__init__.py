"""What a table is, and how its definition changes on clusters that do not ask each other.

Guarantees: definitions join in any order to the same result (``evolution.py``). A column is its uuid; its name may
change. Begin at ``schema.py``.
"""
