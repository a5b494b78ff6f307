"""The time at which a long poll began. Parked fetches are in `corvo.engine.fetches`."""

from corvo import limits
from corvo._fast.http.exchange import Request

_WAITED = b"x-corvo-waited"  # in milliseconds, at other nodes
_WAITED_DIGITS_MAX = 9


def began_ns(request: Request) -> int:
    """When a long poll began to wait: here, or at the node that forwarded it."""
    waited = None if request.rare is None else request.rare.get(_WAITED)
    if waited is None or not waited.isdigit() or len(waited) > _WAITED_DIGITS_MAX:
        return request.arrived_ns
    return request.arrived_ns - int(waited) * limits.MS_NS
