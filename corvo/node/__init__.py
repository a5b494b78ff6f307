"""Composition roots: they build the parts of a server and connect them.

node     one server process, from configuration to graceful stop
cluster  the parts that only a node of a cluster has
status   bodies of /cluster/status and /metrics
"""
