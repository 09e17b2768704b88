"""The writer: from a caller's rows to a durable, published WAL, and the ack.

The way of an append: ``writer.py`` has the rows converted and encoded (``core/rows``) and queues them;
``group_commit.py`` takes what waits as one group; ``wal/wal_series.py`` gives it a commit time, has ``wal/wal_file.py``
write and sync it, checks the role lease and publishes the durable length; then the group is acked. An acked position is
durable on this host. A file whose sync or lease check failed is never touched again (rule 1).

``wal/`` has the files and who holds them; ``importing/`` makes whole files visible under one commit time.
"""
