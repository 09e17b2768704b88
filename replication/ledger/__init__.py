"""The ledger: the SQL record of rules, files, progress, claims and what is applied.

Each file here holds one protocol and its records; ``base.py`` lists them all. Each method is one transaction, durable
when it returns. Decisions are conditional on the master's term. Facts are monotone joins: they may be reported twice
and in any order (rules 6 and 7). Pure decisions are in ``decisions``, the SQL is in ``sql``.
"""
