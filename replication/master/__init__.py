"""The master: observes ledger and ZooKeeper, plans with ``core``, and acts.

Each decision is conditional on the master's term. Sending and receiving go on without a master (rule 8). Begin at
``loop.py``; ``retire.py`` deletes files.
"""
