"""What goes to peers, decided purely: planning, the send window, chunks, throttling, retention."""
