"""Converters: change the bytes of a file on its way, or make a folder of an archive. Begin at ``base.py``."""
