"""From landed bytes to readable tables, on any cluster, its own WALs included.

From below: ``frames``, ``tables``, ``verify``, ``derive``, ``status``, ``receive``, ``bootstrap``, ``replay``,
``client``, ``repair``. Each says in its ``__init__`` where to begin. Imports nothing of ``shell``.
"""
