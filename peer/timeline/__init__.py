"""The timeline service: which versions of a dataset's files there are, and which a reader sees, as of any instant.

Guarantees: a reader sees all files of an instant or none; with the server away it gets the same answers from a view of
its own. Relies on the timeline (``replication/timeline``) and one listing per partition. Begin at ``views.py``.
"""
