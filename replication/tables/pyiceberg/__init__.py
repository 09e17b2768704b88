"""PyIceberg, and everything here that reaches into its insides: patches, file I/O, ordered metadata, row deltas.

A new version of PyIceberg is tried against this folder. Begin at ``append.py`` (rows become data files and a commit)
and ``patches.py`` (what is wrong or slow in PyIceberg).
"""
