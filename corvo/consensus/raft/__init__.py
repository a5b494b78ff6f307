"""Raft: the pure core. Messages and ticks in, messages and work for the disk out."""
