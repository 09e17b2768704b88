"""Receive messages from other clusters: check, write, sync, register and ack them.

Guarantees: acked bytes are durable on this host and registered in the ledger (rule 1). Foreign bytes are checked
before anything is written (rule 10). The ledger claims each sequence once (rule 3). Begin at ``landing.py``.
"""
