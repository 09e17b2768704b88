"""The writer: from rows to acked positions.

Guarantees: an ack means that the rows are on this host's disk, under a valid lease (rule 1). Relies on the worker of
its host, which recovers WALs of dead writers. Begin at ``writer.py``, which has rows converted and encoded
(``core/rows``) and queues them. ``group_commit.py`` is the thread that takes what waits as one group and acks it;
``wal/wal_series.py`` syncs it, checks the lease and publishes the durable length. ``importing/`` makes whole files
visible under one commit time.
"""
