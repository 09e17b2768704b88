"""Faces: the command line, the interactive shell, the demo, and ``up``, which composes the processes.

Begin at ``main.py``. ``commands`` has a file a noun.
"""
