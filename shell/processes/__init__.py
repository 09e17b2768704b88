"""A cluster's processes on one host: started, supervised, stopped."""
