"""Election, membership, roles, assignments and announcements: small, live state in ZooKeeper.

Nothing here is proof: decisions are conditional on the term in the ledger (rule 6). State that must outlive
ZooKeeper's data is in the ledger too. Begin at ``base.py`` (the protocol) and ``paths.py`` (every node).
"""
