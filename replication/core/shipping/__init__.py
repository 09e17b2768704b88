"""What goes to peers, decided purely: planning, the send window, chunks, throttling, retention.

Guarantees: every queue and window is bounded, per peer (rule 9), and a file is deleted only as rule 2 allows. Begin at
``planner.py`` for the master, at ``window.py`` for a sender, at ``retention.py`` for what may go.
"""
