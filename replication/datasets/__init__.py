"""Datasets: whole files, copied between stores and published by file sets, each exactly once.

Promises: the target shows the old or the new file set once a run has ended or was run again, whatever ended it. What is
published is durable. An existing file is never removed before its replacement is durable. A run after a failure reuses
what was copied, also within a large file.

It relies on the target's ``.walship`` folder, where files are staged (in S3 large files are parts of an upload to where
they go), and on ``replication/commit``, which stores the
steps of a publication before the first is executed.

A finder (``finders/``) finds datasets. A dataset lists its files that need copying. ``listing/`` walks and compares,
``copying/`` stages, ``publication/`` publishes, over ``stores/``. Begin at ``job.py``.
"""
