"""Requests that another node must serve.

gate          decides whether a request is served here or forwarded
proxy         forwards requests to the leader
upstream      connections to the leader
stream_relay  forwards lifecycle streams
"""
