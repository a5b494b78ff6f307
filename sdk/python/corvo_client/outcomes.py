"""Outcomes of a handler: exceptions that it raises instead of returning a result, and reports.

A returned value is the result of the job. Any exception that is not one of these is a failed
attempt with its traceback.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from corvo_client import json_text
from corvo_client.api import Api
from corvo_client.core import Steps
from corvo_client.documents import Delivery
from corvo_client.errors import (
    LeaseLostError,
    NotFoundError,
    PayloadTooLargeError,
    ResultSchemaError,
    ValidationError,
)
from corvo_client.options import Duration, HoldOptions

_BACKTRACE_SIZE_MAX = 256 * 1024
_ERROR_SIZE_MAX = 64 * 1024
ExceptionToFail = Callable[[BaseException], tuple[str, str]]


class Outcome(Exception):
    """Base of the outcomes that a handler can raise."""


class Retry(Outcome):
    """The attempt has failed; run the job again, after this time or after its backoff."""

    def __init__(self, reason: str = "retry requested", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Discard(Outcome):
    """The job has failed for good: it becomes dead without further attempts."""

    def __init__(self, reason: str = "discarded") -> None:
        super().__init__(reason)


class Snooze(Outcome):
    """Run the job later; this attempt does not count."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = delay


class Hold(Outcome):
    """The job waits for approval, and then runs again."""

    def __init__(
        self,
        reason: str = "",
        *,
        timeout: Duration | None = None,
        timeout_action: Literal["cancel", "approve", "reject", "none"] | None = None,
        checkpoint: Any = None,
    ) -> None:
        super().__init__(reason)
        options = {"reason": reason or None, "timeout": timeout, "timeout_action": timeout_action}
        self.options = HoldOptions(**options)  # type: ignore[typeddict-item]
        self.checkpoint = checkpoint


class ExitChain(Outcome):
    """The job has completed, and the rest of its chain is skipped."""

    def __init__(self, reason: str = "", *, result: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.result = result


class Cancelled(Outcome):
    """The job was cancelled, and the handler has stopped."""

    def __init__(self, reason: str = "cancelled") -> None:
        super().__init__(reason)


@dataclass
class Report:
    """The call that tells the server how a handler ended."""

    verb: Literal["ack", "fail", "release", "hold"]
    members: dict[str, Any] = field(default_factory=dict)


def completed(result: Any) -> Report:
    """Report a result. Raises TypeError or ValueError if it is not JSON."""
    if result is None:
        return Report("ack")
    return Report("ack", {"result": json_text.RawJson(json_text.encode(result).decode(), False)})


def failed(error: BaseException, to_fail: ExceptionToFail | None = None) -> Report:
    """Report an exception of a handler."""
    if isinstance(error, Snooze):
        return Report("release", {"delay": error.delay})
    if isinstance(error, Hold):
        return Report("hold", {"checkpoint": error.checkpoint, "hold": dict(error.options)})
    if isinstance(error, ExitChain):
        members = completed(error.result).members
        exit_reason = error.reason or None
        return Report("ack", {**members, "step_status": "exit", "exit_reason": exit_reason})
    text, backtrace = (to_fail or describe)(error)
    members = {"error": cut(text, _ERROR_SIZE_MAX), "backtrace": cut(backtrace) or None}
    if isinstance(error, Discard):
        members["retry"] = False
    elif isinstance(error, Retry):
        members["retry_after"] = error.after
    return Report("fail", members)


def describe(error: BaseException) -> tuple[str, str]:
    """Return an exception as an error text and a backtrace."""
    if isinstance(error, Outcome):
        return str(error), ""
    text = "".join(traceback.format_exception_only(error)).strip()
    return text, "".join(traceback.format_exception(error))


def cut(text: str, size_max: int = _BACKTRACE_SIZE_MAX) -> str:
    """Return the end of a text, where a traceback has its cause, within a number of bytes."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= size_max else data[-size_max:].decode("utf-8", "ignore")


def deliver(client: Api, job: Delivery, report: Report) -> Steps[str]:
    """Send a report. Return the state of the job, or `lost` if the lease is lost. A result that
    the server refuses becomes a failed attempt."""
    token = job.lease_token
    members = dict(report.members)
    try:
        if report.verb == "ack":
            try:
                yield from Api.ack.steps(client, job.job_id, lease_token=token, **members)
                return "completed"
            except (ResultSchemaError, PayloadTooLargeError, ValidationError) as error:
                members = {"error": f"the result was refused: {error}"}
        if report.verb == "release":
            status = yield from Api.release.steps(client, job.job_id, lease_token=token, **members)
            return str(status.state)
        if report.verb == "hold":
            hold = members.pop("hold")
            yield from Api.release.steps(
                client, job.job_id, lease_token=token, delay=3600, checkpoint=members["checkpoint"]
            )
            yield from Api.hold_job.steps(client, job.job_id, **hold)
            return "held"
        text = members.pop("error")
        result = yield from Api.fail.steps(client, job.job_id, text, lease_token=token, **members)
        return result.status
    except (LeaseLostError, NotFoundError):  # another worker has the job, or it was deleted
        return "lost"
