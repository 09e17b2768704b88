"""Stores of whole files: a local folder, or any store that fsspec has a driver for. Begin at ``base.py``."""
