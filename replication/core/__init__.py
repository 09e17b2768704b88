"""Words: pure values and decisions, without I/O, clock or threads.

Guarantees: the same input gives the same answer, on any host, so Spark executors and the simulator run it as it is.
Relies on nothing but Arrow and the standard library. Begin at ``frame.py`` (bytes), ``status.py`` (progress) and
``coverage.py`` (what a cluster has). Times are microseconds since 1970, ranges half-open, offsets in bytes.
"""
