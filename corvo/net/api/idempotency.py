"""Requests with an Idempotency-Key: the op that their handler proposes has one effect only."""

from collections.abc import Callable
from hashlib import blake2b

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.engine.service import Service
from corvo.errors import ValidationError

_FINGERPRINT_SIZE = 16


class Idempotency:
    """Has handlers of requests with a key run under its guard."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def handle(self, request: Request, handler: Callable[[Request], None]) -> None:
        """Call the handler. A request that only reads needs no guard."""
        key = request.idempotency_key or b""
        if not 0 < len(key) <= limits.IDEMPOTENCY_KEY_SIZE_MAX:
            raise ValidationError(
                f"the header Idempotency-Key has {len(key)} bytes "
                f"(limits 1-{limits.IDEMPOTENCY_KEY_SIZE_MAX})"
            )
        if request.method in ("GET", "HEAD"):
            handler(request)
            return
        self._service.guard = (key, fingerprint(request))
        try:
            handler(request)
        finally:
            self._service.guard = None


def fingerprint(request: Request) -> bytes:
    """What tells requests with the same key apart."""
    digest = blake2b(digest_size=_FINGERPRINT_SIZE)
    for part in (request.method.encode(), request.path, request.query, request.body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
