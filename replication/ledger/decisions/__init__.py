"""The ledger's decisions about claims and salvage, as pure functions.

The SQL reads their inputs and writes their results in one transaction. Begin at ``claiming.py``.
"""
