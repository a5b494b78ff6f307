"""Refuses requests that a browser sends for pages of other sites, and names of other hosts.

Without authentication the network address is all that protects a server, and a browser can be made
to send requests from inside that network. Two checks stop this:

host    The Host header must be an address, localhost, or a name of this server. A page can give its
        own name the address of this server (DNS rebinding); the browser then treats both as one
        site, but the header has the name of the page.
origin  The Origin header must be the Host of the request or a configured origin, and
        Sec-Fetch-Site must not report another site. Only browsers send these headers.

The front end calls the guard for each host that differs from the one before, and for requests with
one of the headers, as soon as the head is read. Health checks of load balancers pass with any Host:
the probes tell nothing and change nothing.
"""

from collections.abc import Iterable
from typing import Final

from corvo._fast.http.exchange import Request
from corvo.config import Config
from corvo.errors import CrossSite, MisdirectedRequest, cut
from corvo.platform.origins import is_address, is_origin_of, split_authority

_FOREIGN: Final = (b"cross-site", b"same-site")

_CORS: Final = (
    b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n"
    b"Access-Control-Expose-Headers: Link, Retry-After, X-Corvo-Index, X-Request-Id\r\n"
)
# Answers the preflight request of a browser. The star does not include Authorization.
_PREFLIGHT: Final = (
    b"Access-Control-Allow-Methods: DELETE, GET, HEAD, PATCH, POST, PUT\r\n"
    b"Access-Control-Allow-Headers: *, Authorization\r\nAccess-Control-Max-Age: 600\r\n"
)


class BrowserGuard:
    """The names of a server, the origins whose pages may use it, and the paths of its probes."""

    def __init__(
        self,
        names: Iterable[str],
        origins: Iterable[str] = (),
        probes: frozenset[bytes] = frozenset(),
    ) -> None:
        self._names = {name.lower().rstrip(".") for name in names if name} | {"localhost"}
        self._origins = frozenset(origins)
        self._probes = probes

    def check_host(self, request: Request) -> bool:
        """Raise MisdirectedRequest if the host is not this server. Return whether all requests for
        this host pass."""
        assert request.host is not None
        name, _ = split_authority(request.host.decode("latin-1"))
        if name in self._names or is_address(name):
            return True
        if request.path in self._probes:
            return False
        name = cut(name)
        raise MisdirectedRequest(
            f'the host "{name}" is not a name of this server: use its address, or start it with'
            f" --allowed-hosts {name}"
        )

    def check_origin(self, request: Request) -> None:
        """Raise CrossSite if the page that made the request is of another site; the reply to a
        configured origin gets CORS headers."""
        if request.origin is not None:
            origin = request.origin.decode("latin-1").lower()
            if origin in self._origins:
                request.cors_headers = _CORS % request.origin
                if request.method == "OPTIONS":
                    request.cors_headers += _PREFLIGHT
                return
            host = (request.host or b"").decode("latin-1")
            if not is_origin_of(origin, host):
                raise CrossSite(
                    f"a page of {ascii(origin)[1:-1]} made this request, which is not this host;"
                    " --cors-origin allows other origins"
                )
        if request.fetch_site in _FOREIGN:
            raise CrossSite("a page of another site made this request")


def host_names(config: Config) -> tuple[str, ...]:
    """The names that the settings give to this server and its cluster."""
    own = config.bind, config.http_advertise, config.raft_bind, config.raft_advertise
    names = [address.host for address in own if address is not None]
    return (*config.allowed_hosts, *names, config.discover_name)
