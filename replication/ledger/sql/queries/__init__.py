"""Reads and writes within a transaction of the caller: a connection in, values out."""
