"""Benchmarks: ``make bench`` runs them and prints ratios measured side by side in one run; none is a timed test."""
