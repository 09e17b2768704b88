"""Commits through PyIceberg, and all code that uses its internals: patches, file I/O, ordered metadata, row deltas.

Test a new version of PyIceberg against this folder. Begin at ``append.py`` (write data files and commit them) and
``patches.py`` (corrections of PyIceberg).
"""
