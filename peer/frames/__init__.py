"""Registered frames, wherever they lie: found by header, decoded into rows, checked, or quarantined."""
