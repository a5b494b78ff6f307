"""HTTP/2 connections (RFC 9113) and HPACK (RFC 7541).

connection  the connection state machine
headers     header fields of requests, checked
reply_head  header blocks of replies
frames      frame layouts
hpack       header compression
huffman     Huffman code of HPACK
client      a client connection, for the load generator and forwarding
"""
