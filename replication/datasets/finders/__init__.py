"""Finders find datasets in a store; a dataset lists its files that need copying. Begin at ``base.py``."""
