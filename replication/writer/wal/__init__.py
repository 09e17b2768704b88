"""The WALs of one writer: files, rolling, commit times, registration and lease, batch ids, and recovery."""
