"""Replay: registered frames become rows of Iceberg tables, each once."""
