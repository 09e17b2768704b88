"""Receiving what other clusters ship: a message is checked, written, made durable, registered and acked.

Begin at ``landing.py``. An ack means that the bytes are durable on this host and registered in the ledger (rule 1).
"""
