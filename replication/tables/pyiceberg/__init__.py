"""PyIceberg, and everything here that reaches into its insides: patches, file I/O, ordered metadata, row deltas."""
