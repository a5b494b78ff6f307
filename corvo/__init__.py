"""Corvo: a background-job server with an HTTP API."""

__version__ = "0.1.0"
API_VERSION = "v1"
