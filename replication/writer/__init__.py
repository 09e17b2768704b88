"""The writer: from rows to acked positions.

Guarantees: an ack means that the rows are on this host's disk, under a valid lease (rule 1). Relies on the worker of
its host, which recovers WALs of dead writers. Begin at ``writer.py``, which converts and encodes rows (``core/rows``)
and queues them. ``group_commit.py`` is the thread that writes the queued steps as a group and acks them.
``wal/wal_series.py`` syncs a group, checks the lease and publishes the durable length. ``importing/`` makes whole
files visible under one commit time.
"""
