"""The ledger: the SQL record of rules, files, progress, claims and what is applied.

A file here is one protocol with the records it owns; ``base.py`` names them all. Guarantees: a method is one
transaction, durable when it returns. Decisions are conditional on the master's term; facts are joins that may come
twice and in any order (rules 6 and 7). Pure decisions are in ``decisions``, the SQL in ``sql``.
"""
