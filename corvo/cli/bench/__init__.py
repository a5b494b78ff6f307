"""`corvo bench`: load generator and report.

bench     the command, its options and the phases of a run
load      the load of one phase: producers, workers, HTTP/1.1 connections
h2_load   HTTP/2 connections
rpc_load  producers and workers on lifecycle streams
pauses    event-loop and flush pauses, read from the metrics of the server
report    statistics, the saved file and the comparison of two runs
"""
