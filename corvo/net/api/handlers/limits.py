"""The limits of a queue: rate limit, groups, aging."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET

from corvo import limits, ops
from corvo._fast.http.exchange import Request
from corvo.engine import validate
from corvo.engine.service import Service
from corvo.errors import ValidationError
from corvo.net.api.handlers.jobs import on_done
from corvo.net.api.requests import AgingBody, GroupsBody, ThrottleBody, decode
from corvo.net.api.responses import group_document, reply_json
from corvo.net.api.steps import Steps
from corvo.net.http.query import Query

_KEYS_PER_STEP: Final = 5_000


class Limits:
    """Handlers of /queues/{name}/throttle, /groups and /aging."""

    def __init__(self, service: Service, steps: Steps) -> None:
        self._service = service
        self._steps = steps

    def throttle(self, request: Request) -> None:
        """Limit the jobs handed out within any window of time."""
        name = validate.queue_name(request.params[0])
        body = decode(request.body, ThrottleBody)
        if (body.window_ms is None) == (body.period is None):
            raise ValidationError("give exactly one of window_ms and period")
        if body.window_ms is not None:
            window_ns = body.window_ms * limits.MS_NS
        else:
            window_ns = validate.length_ns(body.period, "period")
        if body.rate is None or body.rate <= 0 or window_ns <= 0:
            raise ValidationError("rate and window_ms (or period) must be positive")
        if body.rate > limits.RATE_MAX:
            raise ValidationError(f"rate {body.rate} is out of range (limit {limits.RATE_MAX})")
        if window_ns % limits.MS_NS or window_ns > limits.RATE_WINDOW_MAX_NS:
            raise ValidationError(
                f"a window of {window_ns / 1e9:g} s is out of range (whole milliseconds, "
                f"limit {limits.RATE_WINDOW_MAX_NS // limits.SECOND_NS} s)"
            )
        self._propose(request, ops.SET_THROTTLE, name, body.rate, window_ns // limits.MS_NS)

    def unthrottle(self, request: Request) -> None:
        """Remove the rate limit."""
        self._propose(request, ops.REMOVE_THROTTLE, validate.queue_name(request.params[0]))

    def limit_groups(self, request: Request) -> None:
        """Limit the active jobs of each group; null removes the limit."""
        name = validate.queue_name(request.params[0])
        limit = decode(request.body, GroupsBody).concurrency
        if limit is UNSET:
            raise ValidationError("concurrency is required (null removes the limit)")
        if limit is not None and not 0 < limit <= limits.CONCURRENCY_MAX:
            raise ValidationError(
                f"concurrency {limit} is out of range (1-{limits.CONCURRENCY_MAX}; "
                "null removes the limit)"
            )
        self._propose(request, ops.SET_GROUP_LIMIT, name, limit or 0)

    def groups(self, request: Request) -> None:
        """A page of the groups that have jobs, by key."""
        query = Query(request)
        name = self._service.queue(validate.queue_name(request.params[0])).name
        limit = query.limit()
        self._steps.run(request, self._groups(request, name, query.text("after"), limit))

    def _groups(self, request: Request, name: str, after: str, limit: int) -> Iterator[None]:
        reads = self._service.reads
        keys = reads.group_keys(name)
        first: list[str] = []
        for at in range(0, len(keys), _KEYS_PER_STEP):
            if at:
                yield
            first += [key for key in keys[at : at + _KEYS_PER_STEP] if key > after]
            first = sorted(first)[: limit + 1]
        groups = [reads.group(name, key) for key in first[:limit]]
        documents = [group_document(group) for group in groups if group is not None]
        reply: dict[str, Any] = {"groups": documents, "total": len(keys)}
        if len(first) > limit:
            reply["cursor"] = first[limit - 1]
        reply_json(request, 200, reply)

    def age(self, request: Request) -> None:
        """Serve a normal job next after it waited this long; null switches aging off."""
        name = validate.queue_name(request.params[0])
        after = decode(request.body, AgingBody).after
        if after is UNSET:
            raise ValidationError("after is required (null switches aging off)")
        after_ns = validate.length_ns(after, "after")
        if after is not None and after_ns == 0:
            raise ValidationError("after must be positive (null switches aging off)")
        self._propose(request, ops.SET_QUEUE_OPTIONS, name, [], after_ns + 1)

    def _propose(self, request: Request, op: ops.Op, *values: object) -> None:
        request.context = "ok"
        self._service.submit(request.caller, op, values, (on_done, request))
