"""The worker's reports to the ledger: progress of files at peers, and failed attempts."""
