"""The timeline's server: REST over views, for executors, readers and writers of any language.

Guarantees: a client that names the last instant it knows never gets an older view. Relies on FastAPI and uvicorn
(``walship[timeline]``). Begin at ``app.py``; ``server.py`` runs it, ``models.py`` has its messages.
"""
