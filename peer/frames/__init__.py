"""Registered frames, on any host of the cluster: find them by header, decode them, check them, quarantine them.

Guarantees: only registered bytes are read. A frame that cannot be decoded is saved and reported, never skipped
silently. Begin at ``select.py`` (the frames of a round) and ``decode.py`` (frames to rows, in executors).
"""
