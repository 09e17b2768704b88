"""Receiving: a message from another cluster is checked, written, made durable, registered and acked.

Guarantees: an ack means that the bytes are durable on this host and registered in the ledger (rule 1). Foreign bytes
are checked before anything is written (rule 10). Relies on the ledger to claim each sequence once (rule 3). Begin at
``landing.py``.
"""
