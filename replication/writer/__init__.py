"""The writer: WALs, group commit, registration and recovery."""
