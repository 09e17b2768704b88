"""The user's handle on a cluster, and what it needs: peers, definitions, waiting, operations."""
