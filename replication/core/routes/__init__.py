"""Routes through a graph of clusters, and up to when a cluster has everything of an origin."""
