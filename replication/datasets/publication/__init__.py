"""Publication: moves staged file sets into place by commit sequences, and makes them durable."""
