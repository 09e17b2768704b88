"""Files: appending, syncing and locking, over POSIX and in memory, and stores for files that are moved off the disk.

Guarantees: what was written before a ``sync`` that returned survives a power cut. In tests, ``memory.py`` drops
everything else. Begin at ``base.py``.
"""
