"""Writing and shipping: the words (core), the world (files, ZooKeeper, ledger, link, tables) and three roles.

The roles are the writer, the master and the worker. ARCHITECTURE.md walks from ``append`` to a row at the peer.
Imports nothing of ``peer`` or ``shell``.
"""

__version__ = "0.1.0"
