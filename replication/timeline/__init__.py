"""The durable timeline of a cluster: events of instants, in a folder of any store that creates objects atomically.

Guarantees: an event is durable and has its number when the call returns; two processes never write the same number.
Relies on the store only to create an object that does not exist yet. Begin at ``base.py``.
"""
