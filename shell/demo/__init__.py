"""``walship demo``: whole clusters on this machine replicate real flight data through crashes. Begin at ``demo.py``."""
