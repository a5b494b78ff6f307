"""Micro-benchmarks, one for each module on the way of a write."""
