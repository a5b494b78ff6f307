"""Trace context: the W3C headers of the present span travel with a job to its handler.

With OpenTelemetry installed, its current context is used. Without it, `carry` sets the headers by
hand. Nothing is imported until a header is needed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_carried: ContextVar[Mapping[str, str] | None] = ContextVar("corvo_trace", default=None)
_FIELDS = ("traceparent", "tracestate")


def trace_headers() -> dict[str, str]:
    """Return the trace headers of the present context, none if there is no trace."""
    headers = dict(_carried.get() or {})
    propagate = _propagate()
    if propagate is not None:
        found: dict[str, str] = {}
        propagate.inject(found)
        headers |= {name: found[name] for name in _FIELDS if name in found}
    return headers


@contextmanager
def carry(headers: Mapping[str, Any]) -> Iterator[None]:
    """Make the trace of these headers the present one."""
    known = {name: str(headers[name]) for name in _FIELDS if headers.get(name)}
    token = _carried.set(known)
    propagate = _propagate() if known else None
    attached = None
    if propagate is not None:
        from opentelemetry import context

        attached = context.attach(propagate.extract(known))
    try:
        yield
    finally:
        if attached is not None:
            context.detach(attached)
        _carried.reset(token)


def _propagate() -> Any:
    """The propagation API of OpenTelemetry, if a program has loaded it."""
    import sys

    if "opentelemetry" not in sys.modules:
        return None
    try:
        from opentelemetry import propagate
    except ImportError:
        return None
    return propagate
