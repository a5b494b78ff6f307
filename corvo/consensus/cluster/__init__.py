"""Cluster nodes and the connections between them.

peer_protocol    sans-I/O peer protocol: framing and handshake
peer_connection  one connection between two nodes, and channels on it
transport        all peer connections; sends and receives Raft messages
snapshots        creation, transfer and installation of snapshots
membership       adds, promotes and removes nodes; lets this node join
discovery        finds nodes of the cluster to join, by --join or DNS
divergence       compares state hashes between nodes
"""
