"""Routes through a graph of clusters, and the time up to which a cluster has everything of an origin.

Guarantees: replicated time never passes a required frame that is missing (``freshness.py``). A copy of a cluster is
detected (``forks.py``). Begin at ``carried.py``.
"""
