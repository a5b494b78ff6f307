"""The caller of a request: on whose behalf the service acts.

A caller is immutable and is passed explicitly to every method of `Service` that proposes an op.
Requests without an idempotency key share one caller, so that none is made for each request.
"""


class Caller:
    """An identity in a namespace, and the promises its request made."""

    def __init__(
        self,
        identity: str,
        namespace: str,
        idempotency: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`idempotency` is the key of the request and its fingerprint."""
        self.identity = identity
        self.namespace = namespace
        self.idempotency = idempotency

    def once(self, key: bytes, fingerprint: bytes) -> "Caller":
        """The same caller for a request that takes effect at most once."""
        return Caller(self.identity, self.namespace, (key, fingerprint))

    def without_key(self) -> "Caller":
        """The same caller for the further ops of a request: the key covers its first op only."""
        if self.idempotency is None:
            return self
        return Caller(self.identity, self.namespace)


# Open mode: no access control, everybody is the same caller.
ANONYMOUS = Caller("anonymous", "default")
