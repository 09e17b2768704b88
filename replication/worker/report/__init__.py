"""What the worker reports to the ledger: progress of files at peers, and attempts that failed."""
