"""A cluster's processes on one host: started, supervised, stopped.

Guarantees: a role that ends is started again, and no process outlives its supervisor. Begin at ``up.py``; ``roles.py``
puts each role together.
"""
