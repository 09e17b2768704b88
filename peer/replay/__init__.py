"""Replay: registered frames become rows of Iceberg tables, each once.

Guarantees: rows and positions are one commit, so a kill at any point loses and repeats nothing (rule 3). A table that
fails stops no other (rule 9). Relies on the ledger for what is registered. Begin at ``loop.py``, then ``rounds.py``.
"""
