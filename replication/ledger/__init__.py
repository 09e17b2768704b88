"""The ledger: the SQL record of rules, files, progress, claims and what is applied. ``base`` says what it must do."""
