"""What the worker tells the ledger: progress of files at peers, and attempts that failed."""
