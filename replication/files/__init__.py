"""Files: appending, syncing and locking, over POSIX and in memory, and stores for files that move away.

Guarantees: what ``sync`` returned for survives a power cut; ``memory.py`` drops everything else in tests. Begin at
``base.py``.
"""
