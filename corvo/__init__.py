"""Corvo: a background-job server for every language."""

__version__ = "0.1.0"
API_VERSION = "v1"
