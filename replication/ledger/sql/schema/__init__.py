"""The ledger's SQL tables, and the triggers that note what changed."""
