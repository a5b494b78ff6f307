"""Requests with an Idempotency-Key: the op that their handler proposes takes effect once."""

from hashlib import blake2b

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.errors import ValidationError
from corvo.net.http.router import LEADER, Route

_FINGERPRINT_SIZE = 16


def handle_once(request: Request, route: Route) -> None:
    """Call the handler of the route, with a caller that carries the key. A route that proposes no
    op ignores the key."""
    key = request.idempotency_key or b""
    if not 0 < len(key) <= limits.IDEMPOTENCY_KEY_SIZE_MAX:
        raise ValidationError(
            f"the header Idempotency-Key has {len(key)} bytes "
            f"(limits 1-{limits.IDEMPOTENCY_KEY_SIZE_MAX})"
        )
    if route.at == LEADER:
        request.caller = request.caller.once(key, fingerprint(request))
    route.handler(request)


def fingerprint(request: Request) -> bytes:
    """A digest that tells apart different requests with the same key."""
    digest = blake2b(digest_size=_FINGERPRINT_SIZE)
    for part in (request.method.encode(), request.path, request.query, request.body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
