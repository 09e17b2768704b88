"""Words of whole-file copies: safe names, files' attributes, what is copied, filters, differences, ranges, digests.

Pure values and decisions, for ``replication/datasets``, Spark executors and plugins. Begin at ``copyable.py``.
"""
