"""Listing: walks a source by folders, compares it with the target, and streams what needs copying."""
