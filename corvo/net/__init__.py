"""The front end: HTTP in, HTTP out.

routes    the route table: every path, its handler, its permission and where it is served
hub       streams that are open on this node
http/     sockets, TLS, routing
api/      the REST API
rpc/      Connect and gRPC
streams/  server-sent events
forward/  requests that another node must serve
"""
