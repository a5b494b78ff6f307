"""The second process of a server: it runs the mirror.

supervisor  starts, watches and restarts the sidecar (runs in the server)
channel     framed msgpack requests over a Unix socket, used by both ends
main        entry point of the sidecar process
"""
