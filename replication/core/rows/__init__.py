"""Rows as callers give them and as the log keeps them: exact conversion to and from Arrow."""
