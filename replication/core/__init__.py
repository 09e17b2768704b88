"""Words: pure values and decisions. No I/O, no clock, no threads; Spark executors and tests import it as it is."""
