"""Counters of refused requests and closed connections of the front end, by reason.

Every bound that a peer can exceed has a reason here, so that an attack or a faulty client is
visible in the metrics by name.
"""

from typing import Final

from corvo.errors import (
    CorvoError,
    CrossSite,
    HeadersTooLarge,
    MisdirectedRequest,
    Overloaded,
    PayloadTooLarge,
    UriTooLong,
)

REASONS: Final = {
    "connections": "closed when accepted: too many, in all or from that address",
    "tls_handshake": "handshakes of TLS that failed or took too long",
    "head_size": "431, 414: heads, header fields or targets that are too large",
    "head_time": "408, or just closed: heads that did not arrive in time",
    "body_size": "413: bodies that are too large",
    "body_time": "408: bodies that did not arrive in time, or too slowly",
    "bodies_in_flight": "429: bodies beyond what may be in memory for all connections",
    "malformed": "400, 501, 505 (HTTP/2: reset): requests that break the rules",
    "cross_site": "403: requests that a browser sent for a page of another site",
    "host": "421: requests for a host name that is not one of this server",
    "chunks": "400: chunks that are too small or too many, extensions that are too long",
    "trailers": "400: trailers that are too large",
    "pipeline": "times a connection was not read because it had too many requests in flight",
    "turns": "times a connection had to wait because it had sent too much for one turn",
    "upgrade": "offers to switch to another protocol that were not accepted",
    "unread_replies": "aborted, or reset: replies that were not read in time",
    "forwarded": "503: requests passed on to a node that does not lead",
    "reply_headers": "500: replies with a header that no header may be",
    "streams": "reset: streams beyond what may be open",
    "protocol": "closed: faults of a whole connection of HTTP/2",
    "compression": "closed: header blocks that cannot be decoded",
    "windows": "closed: more data than the windows allowed, windows that are too wide",
    "header_block": "closed: header blocks in too many pieces, too slow or far too large",
    "silence": "closed: settings or pings that were not acknowledged",
    "resets": "closed: too many streams reset by the client",
    "faulty_requests": "closed: too many streams that had to be reset",
    "settings": "closed: too many settings",
    "pings": "closed: too many pings",
    "priorities": "closed: too many priorities",
    "window_updates": "closed: too many window updates",
    "empty_frames": "closed: too many frames with no data",
    "tiny_frames": "closed: too many frames with little data",
    "control_frames": "closed: answers to settings and pings that are not read",
    "slips": "closed: too many small oddities",
}

_BY_ERROR: Final = {
    HeadersTooLarge: "head_size",
    UriTooLong: "head_size",
    PayloadTooLarge: "body_size",
    Overloaded: "bodies_in_flight",
    CrossSite: "cross_site",
    MisdirectedRequest: "host",
}


class AbuseCounters:
    """The counters, by the names of REASONS."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(REASONS, 0)

    def count(self, reason: str) -> None:
        """Something was refused for this reason."""
        self.counts[reason] += 1


def reason_of(error: CorvoError) -> str:
    """The reason why a request is answered with this error before anybody has handled it."""
    return _BY_ERROR.get(type(error), "malformed")
