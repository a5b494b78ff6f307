"""In-memory indexes.

ready         ready jobs of a queue by priority, and heaps of due times
digest_table  open-addressing table of key digests
"""
