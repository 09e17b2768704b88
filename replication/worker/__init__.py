"""The worker role: one process per host that registers, ships and closes time for the files of its host."""
