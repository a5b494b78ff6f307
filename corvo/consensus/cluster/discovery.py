"""The nodes that a newcomer asks: what --join and --discover name.

--join is a URL, or HOST:PORT of the HTTP API of a node, or HOST:PORT where a node listens for
others: there it says where its API is, to who knows the secret
(`corvo.consensus.cluster.peer_protocol`).

--discover=dns names all nodes at once: the addresses of one DNS name, with the port of their API.
They are asked in order, each time the name is looked up anew. The first node of a new cluster
finds nobody. Who that is must be clear to all: the pod with ordinal 0 of a StatefulSet, elsewhere
the node with the lowest address. It begins the cluster when nobody has answered for half a minute.
"""

import asyncio
import ipaddress
import itertools
import json
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from corvo.config import Address, Config
from corvo.consensus.cluster.peer_connection import Tls, ask_where, mutual_tls
from corvo.consensus.cluster.peer_protocol import NONCE_SIZE, PeerRefused
from corvo.errors import ConfigError

logger = logging.getLogger(__name__)

FIRST_AFTER_S: Final = 30.0
TIMEOUT_S: Final = 90.0
ASK_AGAIN_S: Final = 0.5
ASK_S: Final = 5.0
_REPLY_SIZE_MAX: Final = 1 << 20
_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"  # set in every pod
FAILURES: Final = (OSError, ValueError, IndexError, AttributeError)  # of asking, and of answers

# Looks up a name: the addresses, with this port.
Resolve = Callable[[str, int], Awaitable[list[Address]]]


class Source(NamedTuple):
    """Whom to ask. `secure` None: as this node's own API is; and it may not be an API at all."""

    address: Address
    secure: bool | None = None
    name: str = ""  # in its certificate, if not the host of the address

    def __str__(self) -> str:
        scheme = "" if self.secure is None else "https://" if self.secure else "http://"
        return f"{scheme}{self.address}"


def parse_join_address(text: str) -> Source:
    """A URL or HOST:PORT. Raises ConfigError."""
    scheme, colon, rest = text.partition("://")
    if not colon:
        scheme, rest = "", text
    host, colon, port = rest.rstrip("/").rpartition(":")
    known = scheme in ("", "http", "https")
    if not known or not colon or not port.isdigit() or "/" in rest.rstrip("/") or not host:
        raise ConfigError(f"join = {text!a}: want HOST:PORT or a URL such as http://HOST:PORT")
    address = Address(host.removeprefix("[").removesuffix("]"), int(port))
    return Source(address, None if not scheme else scheme == "https")


async def resolve(name: str, port: int) -> list[Address]:
    """What DNS has for a name, the lowest address first."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    hosts = {str(where[0]).partition("%")[0] for *_, where in found}
    return [Address(host, port) for host in sorted(hosts, key=_order)]


def _order(host: str) -> tuple[int, int]:
    address = ipaddress.ip_address(host)
    return address.version, int(address)


def is_own(address: Address) -> bool:
    """Whether the host of the address is this machine."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address.host, 0))
        except OSError:
            return False
    return True


def raft_tls(config: Config) -> Tls | None:
    """TLS between nodes, if the settings ask for it. Raises ConfigError."""
    if not config.raft_tls_cert:
        return None
    files = config.raft_tls_cert, config.raft_tls_key, config.raft_tls_ca
    try:
        return mutual_tls(*files)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"raft-tls: cannot use {', '.join(files)}: {reason}") from None


def api_trust(config: Config) -> ssl.SSLContext:
    """How this node knows the API of another one by TLS. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=config.tls_ca or None)
    except OSError as error:
        raise ConfigError(f"tls-ca: cannot use {config.tls_ca}: {error.strerror}") from None


class Discovery:
    """Finds the cluster, and asks its nodes."""

    def __init__(
        self,
        config: Config,
        random_bytes: Callable[[int], bytes],
        resolve: Resolve = resolve,
        first_after_s: float = FIRST_AFTER_S,
    ) -> None:
        self.api_trust = api_trust(config)
        self.stream_trust = api_trust(config)
        self.stream_trust.set_alpn_protocols(["h2"])
        self.raft_tls = raft_tls(config)
        self._config = config
        self._random_bytes = random_bytes
        self._resolve = resolve
        self._first_after_s = first_after_s
        self._found: dict[Source, Source] = {}  # APIs, of seeds that are ports for other nodes

    # ---- the cluster ----

    async def cluster_id(self, timeout_s: float = TIMEOUT_S) -> str:
        """The id of the cluster that a node is to join; empty when it is to begin one itself.
        Raises ConfigError when nobody says it."""
        whom = self._config.join or self._config.discover_name
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            trouble = "no address of another node is known"
            discovery, is_first = await self.candidates()
            for seed in discovery:
                try:
                    return await asyncio.wait_for(self._cluster_id_of(seed), ASK_S)
                except FAILURES as error:
                    trouble = f"{seed}: {error or 'it does not answer'}"
            waited_s = loop.time() - began_s
            if is_first and waited_s >= self._first_after_s:
                logger.info("nobody answers at %s: this node begins the cluster", whom)
                return ""
            if waited_s >= timeout_s:
                raise ConfigError(f"cannot join the cluster of {whom}: {trouble}")
            logger.warning("cannot join the cluster of %s yet: %s", whom, trouble)
            await asyncio.sleep(ASK_AGAIN_S)

    async def candidates(self) -> tuple[list[Source], bool]:
        """Whom to ask, as the settings say; and whether this node is the first of all."""
        config = self._config
        if config.join:
            return [parse_join_address(config.join)], False
        if not config.discover:
            return [], False
        name = config.discover_name
        try:
            found = await self._resolve(name, config.discover_port)
        except OSError as error:
            logger.warning("cannot look up %s: %s", name, error)
            found = []
        own = [a for a in found if a.port == config.bind.port and is_own(a)]
        discovery = [Source(a, bool(config.tls_cert), name) for a in found if a not in own]
        if _KUBERNETES in os.environ:
            return discovery, config.node_id.endswith("-0")
        return discovery, bool(own) and own[0] == found[0]

    async def _cluster_id_of(self, seed: Source) -> str:
        status, answer = await self.ask(seed, "GET", "/cluster/status")
        if status == 200 and answer.get("cluster_id") and answer.get("mode") == "cluster":
            return str(answer["cluster_id"])
        if status == 503:
            raise ValueError("it is starting")
        raise ValueError("it is no node of a cluster: it needs --raft-bind")

    # ---- asking ----

    async def ask(self, seed: Source, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request to the API of a node. Raises one of FAILURES."""
        api = self._found.get(seed, seed)
        try:
            return await self._request(api, method, path, body)
        except FAILURES as error:
            self._found.pop(seed, None)
            if api.secure is not None:
                raise
            trouble = error
        try:
            api = self._found[seed] = await self._where(seed)
        except (OSError, PeerRefused):
            raise trouble from None
        return await self._request(api, method, path, body)

    async def _where(self, seed: Source) -> Source:
        """The API of the node that listens for others here."""
        secret = self._config.cluster_secret.encode()
        tls = None if self.raft_tls is None else self.raft_tls.dialling
        nonce = self._random_bytes(NONCE_SIZE)
        where = await ask_where(seed.address.host, seed.address.port, secret, nonce, tls)
        return _api(where)

    async def _request(self, api: Source, method: str, path: str, body: Any) -> tuple[int, Any]:
        host, port = api.address.host, api.address.port
        secure = bool(self._config.tls_cert) if api.secure is None else api.secure
        reader, writer = await asyncio.open_connection(
            host,
            port,
            limit=_REPLY_SIZE_MAX,
            ssl=self.api_trust if secure else None,
            server_hostname=(api.name or host) if secure else None,
        )
        try:
            data = b"" if body is None else json.dumps(body).encode()
            head = f"{method} /api/v1{path} HTTP/1.1\r\nHost: {api.address}\r\nConnection: close"
            writer.write(f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            reply = await reader.read(_REPLY_SIZE_MAX)
            while part := await reader.read(_REPLY_SIZE_MAX):
                reply += part
            top, _, rest = reply.partition(b"\r\n\r\n")
            if not top.startswith(b"HTTP/1.1 "):
                raise ValueError("it does not speak HTTP")
            return int(top[9:12]), json.loads(rest)
        finally:
            writer.close()

    async def ask_in_turn(
        self, known: Callable[[], list[str]], path: str, body: Any, done: Callable[[], bool]
    ) -> None:
        """Post to one node after the other until it is done: those that the settings name, and
        those that are known by now."""
        told = ""
        for turn in itertools.count():
            if done():
                return
            try:
                discovery, _ = await self.candidates()
                discovery += [_api(text) for text in known()]
                asked = self.ask(discovery[turn % len(discovery)], "POST", path, body)
                status, answer = await asyncio.wait_for(asked, ASK_S)
                trouble = "" if status == 200 else str(answer.get("error", status))
            except FAILURES as error:
                trouble = str(error) or "no answer"
            if trouble and trouble != told:
                told = trouble
                logger.warning("not in the cluster yet: %s", trouble)
            await asyncio.sleep(ASK_AGAIN_S)


def _api(text: str) -> Source:
    """An API as the configuration of the cluster names it: without a scheme it is no TLS."""
    seed = parse_join_address(text)
    return seed._replace(secure=bool(seed.secure))
