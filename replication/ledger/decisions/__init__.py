"""What the ledger decides about claims and salvage, as pure functions.

The SQL reads what they need and writes what they answer, in one transaction. Begin at ``claiming.py``.
"""
