"""Tables that a hook makes out of others: rows dropped, columns masked, before anything leaves the cluster."""
