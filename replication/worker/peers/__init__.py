"""The loops that serve one peer: its tail, its chunks, and what it has applied."""
