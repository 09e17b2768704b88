"""What a cluster knows about itself and its peers: how far everything is, and what holds it (rule 11).

Reads the ledger and ZooKeeper, changes nothing. Begin at ``collect.py``.
"""
