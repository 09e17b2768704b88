"""Registered frames, on any host of the cluster: found by header, decoded into rows, checked, or quarantined.

Guarantees: only registered bytes are read, and a frame that cannot be decoded is saved and reported, never skipped in
silence. Begin at ``select.py`` (what a round takes) and ``decode.py`` (frames to rows, in executors).
"""
