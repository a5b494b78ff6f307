"""Byte work, compiled by Cython; the same sources run interpreted when built with CORVO_PURE=1.

http/       HTTP/1.1, and parts that both HTTP protocols share
http2/      HTTP/2 and HPACK
codec/      encodings of ops, rows, keys, protobuf, log records
index/      in-memory indexes
batcher     collects ops into the next entry
metrics     counters and histograms
wal_thread  the thread that writes and syncs the log
"""
