"""`corvo bench`: load generation and its report.

bench     the command
load      HTTP/1.1 load
h2_load   HTTP/2 load
rpc_load  lifecycle streams
pauses    loop and flush pauses read from /metrics
report    the table that is printed
"""
