"""The worker: one process per host that registers, ships and closes time for the files of its host.

Guarantees: only durable bytes are shipped, and what a peer acked is noted in the ledger. It goes on without a master.
Begin at ``loop.py``; ``peers/tail.py`` follows growing files, ``ship/shipment.py`` sends one file's bytes to one peer.
"""
