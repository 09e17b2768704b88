"""Files: append, sync and lock, over POSIX and in memory; and remote stores for spilled files.

Guarantees: bytes written before a successful ``sync`` survive a power cut. In tests, ``memory.py`` drops all other
bytes. Begin at ``base.py``.
"""
