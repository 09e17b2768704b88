"""Folders that clusters share with each other: whole files go over the link, where no other store reaches both.

Guarantees: a caller sees and changes nothing outside the folder. Begin at ``shared.py``, which answers; the caller's
end is ``filesystem.py``.
"""
