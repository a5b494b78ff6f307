"""Statistics of the last day: throughput, history, latencies."""

from typing import Any, Final

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.engine.service import Service
from corvo.errors import ValidationError
from corvo.net.api.handlers.search import Asking, min_index, reply_mirrored
from corvo.net.http.query import Query
from corvo.platform.durations import format_duration, parse_duration
from corvo.platform.echoes import shown

_MINUTE_NS: Final = 60 * limits.SECOND_NS
_MINUTES_DEFAULT: Final = 60


class Reports:
    """Handlers of /metrics/throughput, /metrics/history and /metrics/latency."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asking = Asking(service)

    def throughput(self, request: Request) -> None:
        """Jobs enqueued and completed and attempts failed in each of the last 60 minutes."""
        query = Query(request)
        self._ask(request, "throughput", query, {"minutes": _MINUTES_DEFAULT})

    def history(self, request: Request) -> None:
        """Points of charts, up to a day back."""
        query = Query(request)
        minutes = _minutes(query, "period", "24h")
        step = _minutes(query, "step", "5m")
        if step > minutes:
            raise ValidationError("step is longer than period", field="step")
        self._ask(request, "history", query, {"minutes": minutes, "step": step})

    def latency(self, request: Request) -> None:
        """How long jobs waited and ran."""
        query = Query(request)
        period_ns = _minutes(query, "period", "1h") * _MINUTE_NS
        self._ask(request, "latency", query, {"period_ns": period_ns})

    def _ask(self, request: Request, method: str, query: Query, fields: dict[str, Any]) -> None:
        queue = query.text("queue")
        if queue:
            self._service.queue(queue)
        fields |= {"queue": queue, "now_ns": self._service.clock.stamp()}
        self._asking.ask(request, method, fields, min_index(request), reply_mirrored)


def _minutes(query: Query, name: str, default: str) -> int:
    """A length of whole minutes, a day at most."""
    text = query.text(name) or default
    length_ns = parse_duration(text, name)
    most_ns = limits.REPORT_KEPT_NS
    if length_ns % _MINUTE_NS or not 0 < length_ns <= most_ns:
        raise ValidationError(
            f"{name} must be whole minutes up to {format_duration(most_ns)}, not {shown(text)}",
            field=name,
        )
    return length_ns // _MINUTE_NS
