"""Benchmarks: ratios and costs, never a pass or fail."""
