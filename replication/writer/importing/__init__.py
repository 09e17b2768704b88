"""Importing a file whole: it becomes visible under one commit time, or not at all."""
