"""The writer: from rows to acked positions.

Promises: an ack means that the rows are on this host's disk, under a valid lease (rule 1). Relies on the worker of
its host, which recovers WALs of dead writers. Begin at ``writer.py``; ``group_commit.py`` is the thread that writes
and syncs.
"""
