"""Rows that were there before a table was sent: read at one cluster, taken up all at once by another."""
