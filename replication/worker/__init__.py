"""The worker: one process per host. It registers and ships the host's files, and raises closed time for them.

Guarantees: only durable bytes are shipped, and the ledger records what a peer acked. A worker needs no master to go on.
Begin at ``loop.py``; ``peers/tail.py`` follows growing files, ``ship/shipment.py`` sends their bytes to one peer.
"""
