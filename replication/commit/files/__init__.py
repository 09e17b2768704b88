"""Steps over files of any fsspec file system: ``steps`` is the plan, ``executor`` does it, ``checker`` judges it."""
