"""Nodes of a cluster and the connections between them.

peer_protocol    sans-I/O peer protocol: framing and handshake
peer_connection  sockets between peers
transport        sends and receives Raft messages
snapshots        transfer and installation of snapshots
membership       adding, promoting and removing nodes
discovery        finding the first nodes of a new cluster
divergence       comparison of state hashes between nodes
"""
