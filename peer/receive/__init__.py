"""What other clusters ship: whether it may come in, and its way onto this host's disk and into the ledger."""
