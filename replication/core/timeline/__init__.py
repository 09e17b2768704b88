"""The timeline of a cluster, as values: instants, the views of files that they lead to, and what may be cleaned.

Begin at ``instants.py``; ``view.py`` says what an instant does to the files of a dataset.
"""
