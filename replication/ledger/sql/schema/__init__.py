"""The ledger's SQL tables, and the triggers that record changes."""
