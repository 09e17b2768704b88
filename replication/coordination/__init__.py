"""Election, membership, roles, assignments and announcements: small, live state in ZooKeeper.

Guarantees: nothing here is proof. Whoever decides proves its term in the ledger (rule 6), and what must outlive
ZooKeeper's data is in the ledger, too. Begin at ``base.py`` (the protocol) and ``paths.py`` (every node).
"""
