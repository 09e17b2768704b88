"""Faces: the command line, the interactive shell, the demo, and ``up``, which composes the processes."""
