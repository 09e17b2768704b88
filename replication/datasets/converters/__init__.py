"""Converters: change the bytes of a file on its way, front to back. A converted file is not split into ranges."""
