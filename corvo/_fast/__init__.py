"""Byte work, compiled by Cython; the same sources run interpreted when built with CORVO_PURE=1."""
