"""Error classes: the code and HTTP status of every error a user can see.

Inside the state machine an error is a value (apply returns it as the result of an op); everywhere
else it is an exception. `fields` are extra members of the JSON body.
"""

from typing import Any, Final

# Bytes of a piece of input in an error, and of a whole message.
ECHO_SIZE_MAX: Final = 200
MESSAGE_SIZE_MAX: Final = 1024


def cut(text: str, size_max: int = ECHO_SIZE_MAX) -> str:
    """The text, or as much of it as fits in `size_max` bytes of UTF-8 together with an ellipsis."""
    if 4 * len(text) <= size_max:
        return text
    data = text[: size_max + 1].encode("utf-8", "replace")
    if len(data) <= size_max:
        return text
    return data[: size_max - 3].decode("utf-8", "ignore") + "…"


def _cut_all(value: Any) -> Any:
    """A field of an error with all of its texts cut."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, list):
        return [_cut_all(item) for item in value]
    if isinstance(value, dict):
        return {cut(name): _cut_all(item) for name, item in value.items()}
    return value


class CorvoError(Exception):
    """Base class of all errors that a user can see. No error carries long input back: its message
    and the texts in its fields are cut here."""

    code = "INTERNAL_ERROR"
    status = 500

    def __init__(self, message: str, **fields: Any) -> None:
        message = cut(message, MESSAGE_SIZE_MAX)
        super().__init__(message)
        self.message = message
        self.fields = {name: _cut_all(value) for name, value in fields.items()}


class ParseError(CorvoError):
    """The body is not JSON, or not UTF-8."""

    code = "PARSE_ERROR"
    status = 400


class ValidationError(CorvoError):
    """A field is missing, unknown or out of range; the message names field, value and limit."""

    code = "VALIDATION_ERROR"
    status = 400


class InvalidName(ValidationError):
    """A text that becomes part of a key is empty, too long, or has a NUL character."""


class ScheduleError(ValidationError):
    """A cron expression is invalid, or a time zone does not exist."""

    code = "SCHEDULE_ERROR"


class BadRequest(CorvoError):
    """The HTTP message itself is malformed; the connection is closed after the reply."""

    code = "BAD_REQUEST"
    status = 400


class Forbidden(CorvoError):
    """The caller is not allowed to do this."""

    code = "FORBIDDEN"
    status = 403


class CrossSite(CorvoError):
    """A browser sent the request for a page of another site."""

    code = "CROSS_SITE"
    status = 403


class NotFound(CorvoError):
    """The path, job, queue or schedule does not exist."""

    code = "NOT_FOUND"
    status = 404


class MethodNotAllowed(CorvoError):
    """The path exists, but does not support the method."""

    code = "METHOD_NOT_ALLOWED"
    status = 405


class RequestTimeout(CorvoError):
    """The client took too long to send its request."""

    code = "REQUEST_TIMEOUT"
    status = 408


class InvalidState(CorvoError):
    """The job is in a state that does not allow the operation."""

    code = "INVALID_STATE"
    status = 409


class Conflict(CorvoError):
    """The name is taken, or a concurrent change came first."""

    code = "CONFLICT"
    status = 409


class LeaseLost(CorvoError):
    """The lease token is not the current one of the job; nothing was changed."""

    code = "LEASE_LOST"
    status = 409


class MisdirectedRequest(CorvoError):
    """The request is for a host name that is not a name of this server."""

    code = "MISDIRECTED_REQUEST"
    status = 421


class IdempotencyMismatch(CorvoError):
    """The idempotency key was already used for a different request."""

    code = "IDEMPOTENCY_MISMATCH"
    status = 422


class UniqueConflict(CorvoError):
    """Another unfinished job holds the unique key."""

    code = "UNIQUE_CONFLICT"
    status = 409


class PayloadTooLarge(CorvoError):
    """A body or field has more bytes than the limit; the message names the limit."""

    code = "PAYLOAD_TOO_LARGE"
    status = 413


class UriTooLong(CorvoError):
    """The request target is longer than the limit."""

    code = "URI_TOO_LONG"
    status = 414


class HeadersTooLarge(CorvoError):
    """The request head is longer, or has more fields, than the limit."""

    code = "HEADERS_TOO_LARGE"
    status = 431


class ResultSchemaError(CorvoError):
    """A result does not match the result schema; the job stays active.

    The member `validation_errors` lists the violations."""

    code = "RESULT_SCHEMA_VALIDATION_ERROR"
    status = 422


class Overloaded(CorvoError):
    """Too much work is in flight; the member `retry_after_ms` is the suggested retry delay."""

    code = "OVERLOADED"
    status = 429


class NotImplementedHere(CorvoError):
    """The request uses a transfer coding or request form that Corvo does not support."""

    code = "NOT_IMPLEMENTED"
    status = 501


class Unsupported(CorvoError):
    """The operation needs a cluster, but this server runs as a single node."""

    code = "UNSUPPORTED"
    status = 501


class NotReady(CorvoError):
    """The server is starting or stopping."""

    code = "NOT_READY"
    status = 503


class NoLeader(CorvoError):
    """The cluster has no leader, or this node is not the leader.

    Nothing was done, so the client can retry."""

    code = "NO_LEADER"
    status = 503


class MirrorUnavailable(CorvoError):
    """The search mirror is unavailable, so search and bulk actions by filter fail."""

    code = "MIRROR_UNAVAILABLE"
    status = 503


class OutcomeUnknown(CorvoError):
    """The write was proposed, but its outcome was not known in time; it may still be applied."""

    code = "OUTCOME_UNKNOWN"
    status = 504


class VersionNotSupported(CorvoError):
    """The HTTP version is not 1.0 or 1.1."""

    code = "HTTP_VERSION_NOT_SUPPORTED"
    status = 505


class DiskFull(CorvoError):
    """The disk is nearly full: new work is rejected, but acks and deletes still run."""

    code = "DISK_FULL"
    status = 507


class ConfigError(CorvoError):
    """A flag, environment variable or configuration file is wrong; the server does not start."""

    code = "CONFIG_ERROR"
    status = 500


class StorageError(CorvoError):
    """The log or the state store is damaged or was written by a newer version; the node stops."""

    code = "STORAGE_ERROR"
    status = 500


class EntryFailed(StorageError):
    """An entry of the log cannot be applied; the node stops. The member `index` is its index."""


class UnknownOp(CorvoError):
    """This version does not know the op number or its payload format; the node stops."""

    code = "UNKNOWN_OP"
    status = 500


NOTHING_DONE: Final = (429, 503, 507)  # statuses that promise that nothing was done


def honest(error: CorvoError, unsure: bool) -> CorvoError:
    """The error to report.

    If another node may already have executed the request (`Request.unsure`), an error that promises
    that nothing was done becomes OUTCOME_UNKNOWN."""
    return maybe_done() if unsure and error.status in NOTHING_DONE else error


def maybe_done() -> OutcomeUnknown:
    """OUTCOME_UNKNOWN for a request that a lost leader may have executed."""
    return OutcomeUnknown(
        "the leader was lost and the new leader has no record of it; it may still be applied"
    )
