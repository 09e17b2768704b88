"""What every verb shares: which cluster, how to print, Ctrl-C, help."""
