"""Keys, documents and the LMDB base they live in."""
