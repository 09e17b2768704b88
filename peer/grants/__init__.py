"""What other clusters may do here: who calls, what is granted to it, and what was refused.

Guarantees: what is not granted is refused before anything is read or written (rule 10). Begin at ``rights.py``.
"""
