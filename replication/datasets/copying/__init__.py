"""Copying: a bounded window of files, a pool of threads that stages them with digests, and a journal for resuming."""
