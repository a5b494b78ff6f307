"""HTTP/1.1 connections and what both protocols share.

http1           connection state machine over httptools
http1_rules     request rules that httptools does not check
head            parsed request line and fields
head_cache      request heads seen before on this connection
exchange        a request and the ways to answer it
abuse_counters  per-connection counters of refused requests
token_bucket    bounded rate of a kind of frame
monotonic       cheap monotonic clock
"""
