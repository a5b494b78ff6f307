"""HTTP server: sockets, TLS and routing.

server         the asyncio protocol; one write per connection and loop turn
tls            certificates and ALPN
router         finds the route of a request and counts it
query          query parameters
browser_guard  refusal of requests for pages of other sites and of unknown hosts
long_poll      the time at which a long poll began, here or at the node that forwarded it
open_streams   responses that stay open
"""
