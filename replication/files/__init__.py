"""Files: append, sync, lock and read, over POSIX; and remote stores for spilled files.

Guarantees: bytes written before a successful ``sync`` survive a power cut. In tests, ``tests/fakes/files.py`` drops all
other bytes. Begin at ``base.py``.
"""
