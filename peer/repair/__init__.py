"""What a person repairs: damaged or lost files, a lost ledger, a restored cluster, quarantined frames.

Guarantees: nothing changes before it has said what is lost (``salvage``), or only on a stopped cluster (``rebuild.py``,
``reincarnate.py``). Begin at the verb's own file.
"""
