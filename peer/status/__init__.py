"""What a cluster knows about itself and its peers: how far everything is, and what holds it."""
