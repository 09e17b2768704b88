"""Compares a table of two clusters by digests, and answers for a cluster in a process of its own.

Both sides read as of one replicated time, in bounded memory. Only keys that may differ are sent. Begin at
``compare.py``.
"""
