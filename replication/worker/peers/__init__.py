"""The loops that serve one peer: the tail, the chunk streams, and the poll for ``applied``."""
