"""From landed bytes to readable tables, on any cluster, its own WALs included."""
