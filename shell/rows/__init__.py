"""Rows between tables and a terminal or files: read, written, imported, printed."""
