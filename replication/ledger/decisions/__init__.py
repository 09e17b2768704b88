"""What the ledger decides about claims and salvage, as pure functions."""
