"""One class for each of the ledger's protocols; none imports another."""
