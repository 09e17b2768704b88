"""What every verb shares: which cluster, how to print, Ctrl-C, help.

Guarantees: an error is one line and a hint, with the exit code of its class. Begin at ``invocation.py``.
"""
