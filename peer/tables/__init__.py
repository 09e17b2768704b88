"""The tables people query: latest rows, fold, maintenance, reads and traces."""
