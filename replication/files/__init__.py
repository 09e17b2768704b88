"""Files: appending, syncing and locking, over POSIX and in memory."""
