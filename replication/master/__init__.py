"""The master: observes ledger and ZooKeeper, plans with ``core``, and acts.

Guarantees: each decision is conditional on its term. Sending and receiving go on without it (rule 8). Begin at
``loop.py``; ``retire.py`` deletes files.
"""
