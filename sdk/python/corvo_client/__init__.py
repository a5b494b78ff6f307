"""Client and worker of Corvo, a background-job server.

api           every route of the server as a method; `Client` and `AsyncClient` share them
core          requests as data, and when they are repeated; no I/O
tasks         typed tasks: `App`, `task.enqueue(...)`
worker        fetches jobs, runs handlers, reports
context       what a handler can learn and report
outcomes      what a handler can raise
testing       a real server with a settable clock for tests
"""

from corvo_client.aio import AsyncClient
from corvo_client.client import Client
from corvo_client.context import Context, LogHandler, context
from corvo_client.core import VERSION
from corvo_client.documents import Delivery, Job
from corvo_client.errors import (
    ConflictError,
    CorvoError,
    ForbiddenError,
    InvalidStateError,
    LeaseLostError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    PayloadTooLargeError,
    RateLimitedError,
    ResultSchemaError,
    UnauthorizedError,
    UnavailableError,
    UniqueConflictError,
    Unreachable,
    ValidationError,
)
from corvo_client.json_text import RawJson
from corvo_client.outcomes import Cancelled, Discard, ExitChain, Hold, Retry, Snooze
from corvo_client.tasks import App, AsyncHandle, Handle, JobFailed
from corvo_client.webhooks import verify
from corvo_client.worker import Worker

__version__ = VERSION
__all__ = [
    "App",
    "AsyncClient",
    "AsyncHandle",
    "Cancelled",
    "Client",
    "ConflictError",
    "Context",
    "CorvoError",
    "Delivery",
    "Discard",
    "ExitChain",
    "ForbiddenError",
    "Handle",
    "Hold",
    "InvalidStateError",
    "Job",
    "JobFailed",
    "LeaseLostError",
    "LogHandler",
    "NotFoundError",
    "OutcomeUnknownError",
    "OverloadedError",
    "PayloadTooLargeError",
    "RateLimitedError",
    "RawJson",
    "ResultSchemaError",
    "Retry",
    "Snooze",
    "UnauthorizedError",
    "UnavailableError",
    "UniqueConflictError",
    "Unreachable",
    "ValidationError",
    "Worker",
    "__version__",
    "context",
    "verify",
]
