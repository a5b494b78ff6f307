"""Client and worker of Corvo, a background-job server."""

from corvo_client.aio import AsyncClient
from corvo_client.client import Client
from corvo_client.core import VERSION
from corvo_client.json_text import RawJson

__version__ = VERSION
__all__ = ["AsyncClient", "Client", "RawJson", "__version__"]
