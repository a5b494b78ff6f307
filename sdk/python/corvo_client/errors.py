"""Errors: one class for each kind of refusal that a program may want to tell apart.

All are a `CorvoError`. Codes that this version does not know become the class of their
status, so that a newer server causes no surprise.
"""

from typing import Any


class CorvoError(Exception):
    """A request failed. `code` and `status` are those of the server, `body` its whole answer."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        status: int = 0,
        retry_after: float | None = None,
        body: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.retry_after = retry_after
        self.body = body or {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[CorvoError], args: tuple[str], state: dict[str, Any]) -> CorvoError:
    error = kind(*args)
    error.__dict__.update(state)
    return error


class Unreachable(CorvoError, ConnectionError):
    """There was no usable response: no connection, a broken one, or none in time. The cause is
    `__cause__`; `sent` tells whether the server may have received the request."""

    sent = False


class ValidationError(CorvoError):
    """400: a field is missing, unknown or out of range."""


class UnauthorizedError(CorvoError):
    """401: the credentials are missing or wrong."""


class ForbiddenError(CorvoError):
    """403: the credentials do not permit this."""


class NotFoundError(CorvoError):
    """404: the job, queue, schedule or path does not exist."""


class ConflictError(CorvoError):
    """409: the state of the server does not permit this."""


class InvalidStateError(ConflictError):
    """409 INVALID_STATE: the state of the job does not permit this."""


class LeaseLostError(ConflictError):
    """409 LEASE_LOST: the worker no longer has the job. It is never retried."""


class UniqueConflictError(ConflictError):
    """409 UNIQUE_CONFLICT: another job holds the unique key."""


class PayloadTooLargeError(CorvoError):
    """413: too many bytes; the message names the limit. It is never retried."""


class ResultSchemaError(CorvoError):
    """422: the result does not match the schema of its job."""

    @property
    def validation_errors(self) -> list[dict[str, Any]]:
        """The violations: path, message and value."""
        return list(self.body.get("validation_errors", ()))


class IdempotencyMismatchError(CorvoError):
    """422: the idempotency key was used with another request."""


class OverloadedError(CorvoError):
    """429: the server has too much work in flight."""


class RateLimitedError(OverloadedError):
    """429 RATE_LIMITED: this client sends too many requests."""


class BudgetExceededError(CorvoError):
    """The budget of the queue or tag is used up."""


class UnavailableError(CorvoError):
    """503: the server is starting or stopping, or has no leader or no mirror."""


class OutcomeUnknownError(CorvoError):
    """504 OUTCOME_UNKNOWN: the write was not confirmed in time, and may still be applied."""


class DiskFullError(CorvoError):
    """507: the server takes no new work until there is space."""


_BY_CODE: dict[str, type[CorvoError]] = {
    "INVALID_STATE": InvalidStateError,
    "LEASE_LOST": LeaseLostError,
    "UNIQUE_CONFLICT": UniqueConflictError,
    "RESULT_SCHEMA_VALIDATION_ERROR": ResultSchemaError,
    "IDEMPOTENCY_MISMATCH": IdempotencyMismatchError,
    "RATE_LIMITED": RateLimitedError,
    "BUDGET_EXCEEDED": BudgetExceededError,
}
_BY_STATUS: dict[int, type[CorvoError]] = {
    400: ValidationError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: PayloadTooLargeError,
    429: OverloadedError,
    503: UnavailableError,
    504: OutcomeUnknownError,
    507: DiskFullError,
}


def refusal(
    status: int, message: str, body: dict[str, Any], retry_after: float | None
) -> CorvoError:
    """Return the error of a response."""
    code = str(body.get("code") or f"HTTP_{status}")
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, CorvoError)
    text = str(body.get("error") or message)
    return kind(text, code=code, status=status, retry_after=retry_after, body=body)
