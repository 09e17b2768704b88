"""Two-way sync: changes go both ways, and of a file that changed on both sides both versions are kept."""
