"""One class for each of the ledger's protocols; they do not import each other."""
