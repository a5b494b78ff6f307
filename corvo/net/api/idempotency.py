"""Requests with an Idempotency-Key: the op that their handler proposes takes effect once."""

from hashlib import blake2b

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.engine.service import Service
from corvo.errors import ValidationError
from corvo.net.http.router import LEADER, Route

_FINGERPRINT_SIZE = 16


class Idempotency:
    """Has handlers of requests with a key run under its guard."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def handle(self, request: Request, route: Route) -> None:
        """Call the handler of the route. A route that proposes no op ignores the key."""
        key = request.idempotency_key or b""
        if not 0 < len(key) <= limits.IDEMPOTENCY_KEY_SIZE_MAX:
            raise ValidationError(
                f"the header Idempotency-Key has {len(key)} bytes "
                f"(limits 1-{limits.IDEMPOTENCY_KEY_SIZE_MAX})"
            )
        if route.at != LEADER:
            route.handler(request)
            return
        self._service.guard = (key, fingerprint(request))
        try:
            route.handler(request)
        finally:
            self._service.guard = None


def fingerprint(request: Request) -> bytes:
    """What tells requests with the same key apart."""
    digest = blake2b(digest_size=_FINGERPRINT_SIZE)
    for part in (request.method.encode(), request.path, request.query, request.body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
