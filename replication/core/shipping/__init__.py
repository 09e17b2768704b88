"""Decisions about shipping: planning, the send window, chunks, rates, retention. Pure.

Guarantees: every queue and window is bounded, per peer (rule 9). A file is deleted only as rule 2 allows. Begin at
``planner.py`` for the master, ``window.py`` for a sender, and ``retention.py`` for deletion of files.
"""
