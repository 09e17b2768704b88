"""Whole clusters as processes; a package, so that those which its tests share end with the last of these tests."""
