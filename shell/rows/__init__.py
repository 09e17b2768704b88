"""Rows between a terminal or files and tables: read, written, imported, printed."""
