"""The one tree of errors: code and HTTP status of everything Corvo refuses.

An error travels as a value inside the state machine (apply returns it as the result of an op)
and as an exception everywhere else. `fields` are extra members of the JSON body.
"""

from typing import Any, Final


class CorvoError(Exception):
    """Base of all errors that a user can be shown."""

    code = "INTERNAL_ERROR"
    status = 500

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class ParseError(CorvoError):
    """The body is not JSON, or not UTF-8."""

    code = "PARSE_ERROR"
    status = 400


class ValidationError(CorvoError):
    """A field is missing, unknown or out of range; the message names field, value and limit."""

    code = "VALIDATION_ERROR"
    status = 400


class ScheduleError(ValidationError):
    """A cron expression or time zone that does not exist."""

    code = "SCHEDULE_ERROR"


class BadRequest(CorvoError):
    """The HTTP message itself is malformed; the connection is closed after the reply."""

    code = "BAD_REQUEST"
    status = 400


class Forbidden(CorvoError):
    """The caller may not do this."""

    code = "FORBIDDEN"
    status = 403


class NotFound(CorvoError):
    """Unknown path, job, queue or schedule."""

    code = "NOT_FOUND"
    status = 404


class MethodNotAllowed(CorvoError):
    """The path exists, the method does not."""

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
    """The name is taken, or somebody else was faster."""

    code = "CONFLICT"
    status = 409


class LeaseLost(CorvoError):
    """The lease token is not the live one; nothing was changed."""

    code = "LEASE_LOST"
    status = 409


class IdempotencyMismatch(CorvoError):
    """The idempotency key was used with another request."""

    code = "IDEMPOTENCY_MISMATCH"
    status = 422


class UniqueConflict(CorvoError):
    """Another live job holds the unique key."""

    code = "UNIQUE_CONFLICT"
    status = 409


class PayloadTooLarge(CorvoError):
    """More bytes than the limit that the message names."""

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
    """A result does not meet the schema of its job, which stays active; `validation_errors`."""

    code = "RESULT_SCHEMA_VALIDATION_ERROR"
    status = 422


class Overloaded(CorvoError):
    """Too much work in flight; `retry_after_ms` says when to come back."""

    code = "OVERLOADED"
    status = 429


class NotImplementedHere(CorvoError):
    """A transfer coding or request form that Corvo does not speak."""

    code = "NOT_IMPLEMENTED"
    status = 501


class Unsupported(CorvoError):
    """A function of clusters, on a server that is none."""

    code = "UNSUPPORTED"
    status = 501


class NotReady(CorvoError):
    """The server is starting or stopping."""

    code = "NOT_READY"
    status = 503


class NoLeader(CorvoError):
    """Nobody leads the cluster, or not this node: nothing was done; try again."""

    code = "NO_LEADER"
    status = 503


class MirrorUnavailable(CorvoError):
    """Search and everything that rests on it cannot be served now."""

    code = "MIRROR_UNAVAILABLE"
    status = 503


class OutcomeUnknown(CorvoError):
    """The write was proposed but its fate was not learned in time; it may still happen."""

    code = "OUTCOME_UNKNOWN"
    status = 504


class VersionNotSupported(CorvoError):
    """An HTTP version other than 1.0 and 1.1."""

    code = "HTTP_VERSION_NOT_SUPPORTED"
    status = 505


class DiskFull(CorvoError):
    """The disk is full: new work is refused, acks and deletes still run."""

    code = "DISK_FULL"
    status = 507


class ConfigError(CorvoError):
    """A flag, environment variable or configuration file is wrong; the server does not start."""

    code = "CONFIG_ERROR"
    status = 500


class StorageError(CorvoError):
    """The log or the base is damaged or from a newer version; the node stops."""

    code = "STORAGE_ERROR"
    status = 500


class UnknownOp(CorvoError):
    """An op number or payload format this node does not know; the node stops."""

    code = "UNKNOWN_OP"
    status = 500


NOTHING_DONE: Final = (429, 503, 507)  # statuses that say so


def honest(error: CorvoError, unsure: bool) -> CorvoError:
    """The error to answer with. That nothing was done is not known of a request that another node
    may have done before (`Request.unsure`)."""
    return maybe_done() if unsure and error.status in NOTHING_DONE else error


def maybe_done() -> OutcomeUnknown:
    """By a leader that was lost."""
    return OutcomeUnknown("the leader was lost, and the next one has not done it; it may be done")
