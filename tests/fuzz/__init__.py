"""Fuzzing of every decoder that reads bytes of another process. ``make fuzz MINUTES=n`` runs it for longer.

``decoders.py`` has the decoders with true examples, ``edits.py`` changes bytes, ``corpus/`` keeps what once failed.
"""
