"""``walship demo``: two whole clusters on this machine keep real flight data the same, through crashes."""
