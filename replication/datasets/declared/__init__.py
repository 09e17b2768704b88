"""Declared datasets: their definitions in a TOML file, and the history of their runs in a SQLite file beside it."""
