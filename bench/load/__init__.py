"""Load for the comparisons."""
