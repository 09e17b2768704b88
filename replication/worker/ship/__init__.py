"""One stream to a peer: declare routes, select frames, send messages, process replies."""
