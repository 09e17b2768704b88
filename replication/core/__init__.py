"""Words: pure values and decisions, without I/O, clock or threads.

Guarantees: the same input gives the same output on any host, so Spark executors and the simulator run the same code.
Relies only on Arrow and the standard library. Begin at ``frame.py`` (bytes), ``status.py`` (progress) and
``coverage.py`` (the sequences a cluster has). Times are microseconds since 1970, ranges half-open, offsets in bytes.
"""
