"""Discovery of cluster nodes for a new node: --join and --discover.

--join is a URL, or HOST:PORT of the HTTP API of a node, or HOST:PORT of its peer port. The peer
port returns the address of the API to a client that knows the secret
(`corvo.consensus.cluster.peer_protocol`).

--discover=dns resolves one DNS name to the addresses of all nodes, with the port of their API. The
nodes are queried in order, and the name is resolved again before each pass. The first node of a new
cluster finds no other node. All nodes must agree which node is the first: the pod with ordinal 0 of
a StatefulSet, or else the node with the lowest address. The first node starts a new cluster if no
node responds for 30 seconds.
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
from corvo.consensus.cluster.peer_connection import Tls, mutual_tls, query_api_address
from corvo.consensus.cluster.peer_protocol import NONCE_SIZE, PeerRefused
from corvo.errors import ConfigError

logger = logging.getLogger(__name__)

FIRST_AFTER_S: Final = 30.0
TIMEOUT_S: Final = 90.0
ASK_AGAIN_S: Final = 0.5
ASK_S: Final = 5.0
_REPLY_SIZE_MAX: Final = 1 << 20
_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"  # set in every pod
FAILURES: Final = (OSError, ValueError, IndexError, AttributeError)  # of a query or its response

# Resolves a name to addresses with the given port.
Resolve = Callable[[str, int], Awaitable[list[Address]]]


class Source(NamedTuple):
    """A node to query.

    `secure` None means the scheme of this node's own API; the address may also be a peer port."""

    address: Address
    secure: bool | None = None
    name: str = ""  # host name in the certificate, if it is not the host of the address

    def __str__(self) -> str:
        scheme = "" if self.secure is None else "https://" if self.secure else "http://"
        return f"{scheme}{self.address}"


def parse_join_address(text: str) -> Source:
    """Parse the value of --join, a URL or HOST:PORT. Raises ConfigError."""
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
    """Resolve a name by DNS, the lowest address first."""
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
    """The TLS contexts between nodes, if configured. Raises ConfigError."""
    if not config.raft_tls_cert:
        return None
    files = config.raft_tls_cert, config.raft_tls_key, config.raft_tls_ca
    try:
        return mutual_tls(*files)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"raft-tls: cannot use {', '.join(files)}: {reason}") from None


def api_trust(config: Config) -> ssl.SSLContext:
    """The TLS context that verifies the API of other nodes. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=config.tls_ca or None)
    except OSError as error:
        raise ConfigError(f"tls-ca: cannot use {config.tls_ca}: {error.strerror}") from None


class Discovery:
    """Finds the cluster and queries its nodes."""

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
        self._found: dict[Source, Source] = {}  # peer port -> API of the same node

    # ---- the cluster ----

    async def cluster_id(self, timeout_s: float = TIMEOUT_S) -> str:
        """The id of the cluster to join, or "" if this node must start a new cluster.

        Raises ConfigError if no node returns the id in time."""
        target = self._config.join or self._config.discover_name
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            problem = "no address of another node is known"
            sources, is_first = await self.candidates()
            for source in sources:
                try:
                    return await asyncio.wait_for(self._cluster_id_of(source), ASK_S)
                except FAILURES as error:
                    problem = f"{source}: {error or 'no response'}"
            waited_s = loop.time() - began_s
            if is_first and waited_s >= self._first_after_s:
                logger.info("no node responds at %s: this node starts a new cluster", target)
                return ""
            if waited_s >= timeout_s:
                raise ConfigError(f"cannot join the cluster at {target}: {problem}")
            logger.warning("cannot join the cluster at %s yet: %s", target, problem)
            await asyncio.sleep(ASK_AGAIN_S)

    async def candidates(self) -> tuple[list[Source], bool]:
        """The configured nodes to query, and whether this node is the first of the cluster."""
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
        sources = [Source(a, bool(config.tls_cert), name) for a in found if a not in own]
        if _KUBERNETES in os.environ:
            return sources, config.node_id.endswith("-0")
        return sources, bool(own) and own[0] == found[0]

    async def _cluster_id_of(self, source: Source) -> str:
        status, answer = await self.ask(source, "GET", "/cluster/status")
        if status == 200 and answer.get("cluster_id") and answer.get("mode") == "cluster":
            return str(answer["cluster_id"])
        if status == 503:
            raise ValueError("the node is starting")
        raise ValueError("the node is not a cluster node: it needs --raft-bind")

    # ---- queries ----

    async def ask(
        self, source: Source, method: str, path: str, body: Any = None
    ) -> tuple[int, Any]:
        """Send one request to the API of a node. Raises one of FAILURES."""
        api = self._found.get(source, source)
        try:
            return await self._request(api, method, path, body)
        except FAILURES as error:
            self._found.pop(source, None)
            if api.secure is not None:
                raise
            problem = error
        try:
            api = self._found[source] = await self._api_address(source)
        except (OSError, PeerRefused):
            raise problem from None
        return await self._request(api, method, path, body)

    async def _api_address(self, source: Source) -> Source:
        """Query the peer port of a node for the address of its API."""
        secret = self._config.cluster_secret.encode()
        tls = None if self.raft_tls is None else self.raft_tls.dialing
        nonce = self._random_bytes(NONCE_SIZE)
        host, port = source.address.host, source.address.port
        return _api(await query_api_address(host, port, secret, nonce, tls))

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
                raise ValueError("the response is not HTTP")
            return int(top[9:12]), json.loads(rest)
        finally:
            writer.close()

    async def ask_in_turn(
        self, known: Callable[[], list[str]], path: str, body: Any, done: Callable[[], bool]
    ) -> None:
        """Send a POST to one node after another until `done` returns True.

        The nodes are the configured ones and those returned by `known`."""
        logged = ""
        for turn in itertools.count():
            if done():
                return
            try:
                sources, _ = await self.candidates()
                sources += [_api(text) for text in known()]
                query = self.ask(sources[turn % len(sources)], "POST", path, body)
                status, answer = await asyncio.wait_for(query, ASK_S)
                problem = "" if status == 200 else str(answer.get("error", status))
            except FAILURES as error:
                problem = str(error) or "no response"
            if problem and problem != logged:
                logged = problem
                logger.warning("not a member of the cluster yet: %s", problem)
            await asyncio.sleep(ASK_AGAIN_S)


def _api(text: str) -> Source:
    """Parse an API address from the cluster configuration; without a scheme it has no TLS."""
    source = parse_join_address(text)
    return source._replace(secure=bool(source.secure))
