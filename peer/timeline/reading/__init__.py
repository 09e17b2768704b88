"""Reads datasets as of an instant: the files, their rows in Arrow, and a Spark data source.

Guarantees: a reader gets the files of an instant or none. A file that is written over or deleted under a reader is an
error, never other rows. Cleaning keeps what a reader holds. Begin at ``dataset.py``.
"""
