"""Tasks: functions that are enqueued by a call and run by a worker.

    app = App("http://localhost:8080")

    @app.task(queue="emails", retries=5)
    def send(to: str, n: int) -> str: ...

    send.enqueue(to="a@example.com", n=1)

A call is checked by type checkers like a call of the function itself. The payload is the arguments
by name: `{"to": "a@example.com", "n": 1}`.
"""

import asyncio
import copy
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from corvo_client import documents as d
from corvo_client import json_text
from corvo_client.aio import AsyncClient
from corvo_client.api import Api, Hook, job_fields
from corvo_client.client import Client
from corvo_client.context import Context
from corvo_client.conversion import Loader, loader
from corvo_client.core import ClientOptions, Emissions, Steps
from corvo_client.endpoints import Awaiting, Blocking, Routine, Stream
from corvo_client.errors import CorvoError
from corvo_client.options import EnqueueOptions, JobItem
from corvo_client.outcomes import ExceptionToFail

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Executor = Literal["thread", "process"]
Middleware = Callable[[Context], AbstractContextManager[Any]]


class JobFailed(CorvoError):
    """The job ended without a result: it is dead or cancelled. `job` is the whole job."""

    def __init__(self, job: d.Job) -> None:
        errors = job.errors or []
        reason = errors[-1].error if errors else f"the job is {job.state}"
        super().__init__(f"{job.id}: {reason}", code=job.state.upper())
        self.job = job


class Enqueueing(Generic[R]):
    """A job that was enqueued. Its methods ask the server."""

    def __init__(self, client: Any, enqueued: d.Enqueued, convert: Loader | None) -> None:
        self.client = client
        self.enqueued = enqueued
        self._convert = convert

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.enqueued.job_id

    @property
    def core(self) -> Any:
        """The core of the client."""
        return self.client.core

    @Routine
    def wait(self, timeout: float | None = None) -> Steps[R]:
        """Wait until the job has ended, and return its result. Raises JobFailed, TimeoutError."""
        job = yield from Api.wait.steps(self.client, self.id, timeout=timeout)
        if job.state != "completed":
            raise JobFailed(job)
        result: R = self._convert(job.result) if self._convert else job.result
        return result

    @Routine
    def get(self) -> Steps[d.Job]:
        """Return the job."""
        return (yield from Api.get_job.steps(self.client, self.id))

    @Routine
    def cancel(self, *, force: bool = False) -> Steps[d.Status]:
        """Cancel the job."""
        return (yield from Api.cancel_job.steps(self.client, self.id, force=force))

    @Routine
    def explain(self) -> Steps[d.Explanation]:
        """Return why the job does not run, or what it does."""
        return (yield from Api.explain.steps(self.client, self.id))

    @Stream
    def stream(self) -> Emissions[d.StreamEvent]:
        """Give the live output of the job until it ends."""
        yield from Api.job_stream.steps(self.client, self.id)


class Handle(Enqueueing[R], Blocking):
    """A job that was enqueued; the methods block."""

    def run(self, steps: Steps[T]) -> T:
        client: Client = self.client
        return client.run(steps)

    def iterate(self, steps: Emissions[T]) -> Iterator[T]:
        client: Client = self.client
        return client.iterate(steps)


class AsyncHandle(Enqueueing[R], Awaiting):
    """A job that was enqueued; the methods are awaited."""

    def run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        client: AsyncClient = self.client
        return client.run(steps)

    def iterate(self, steps: Emissions[T]) -> AsyncIterator[T]:
        client: AsyncClient = self.client
        return client.iterate(steps)


class Handler:
    """The code that a worker runs for a job."""

    executor: Executor = "thread"
    is_async = False
    reference: tuple[str, str]  # module and name, for another process

    def invoke(self, ctx: Context) -> Any:
        """Run, and return the result or a coroutine."""
        raise NotImplementedError


class FunctionHandler(Handler):
    """A function that takes the job and the context."""

    def __init__(self, function: Callable[[d.Delivery, Context], Any], executor: Executor) -> None:
        self.function = function
        self.executor = executor
        self.is_async = inspect.iscoroutinefunction(function)
        self.reference = function.__module__, function.__qualname__

    def invoke(self, ctx: Context) -> Any:
        """Run the function."""
        return self.function(ctx.job, ctx)


class Task(Handler, Generic[P, R]):
    """A function with a queue. `enqueue` takes its arguments."""

    def __init__(
        self,
        app: "App",
        function: Callable[..., Any],
        queue: str,
        name: str | None,
        executor: Executor,
        options: EnqueueOptions,
    ) -> None:
        self.app = app
        self.function = function
        self.queue = queue
        self.name = name
        self.executor = executor
        self.is_async = inspect.iscoroutinefunction(function)
        self.reference = function.__module__, function.__qualname__
        self.options = options
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function
        hints = typing.get_type_hints(function)
        self._signature = inspect.signature(function)
        self._loaders: dict[str, Loader | None] = {}
        for parameter in self._signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"{function.__name__}: {parameter} has no name in a payload")
            self._loaders[parameter.name] = loader(hints.get(parameter.name, Any))
        self._load_result = loader(hints.get("return", Any))

    def with_options(self, **options: Unpack[EnqueueOptions]) -> Self:
        """Return the same task with other options for the jobs that it enqueues."""
        changed = copy.copy(self)
        changed.options = EnqueueOptions(**{**self.options, **options})
        return changed

    def item(self, *args: P.args, **kwargs: P.kwargs) -> JobItem:
        """Return the job of a call, for `enqueue_batch`."""
        payload = dict(self._signature.bind(*args, **kwargs).arguments)
        fields = job_fields(self.queue, payload, self.options)
        if self.name is not None:
            fields["tags"] = {**(fields.get("tags") or {}), "task": self.name}
        return fields  # type: ignore[return-value]

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call."""
        fields: Any = self.item(*args, **kwargs)
        enqueued = self.app.client.enqueue(**fields)
        return Handle(self.app.client, enqueued, self._load_result)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncHandle[R]:
        """Enqueue a call from asyncio."""
        client = self.app.async_client
        fields: Any = self.item(*args, **kwargs)
        return AsyncHandle(client, await client.enqueue(**fields), self._load_result)

    def invoke(self, ctx: Context) -> Any:
        """Run the function with the arguments of a job."""
        payload = ctx.job.payload or {}
        if not isinstance(payload, dict):
            raise TypeError(f"the payload of {self.__name__} must be an object of its arguments")
        arguments = {}
        for name, value in payload.items():
            convert = self._loaders.get(name)
            try:
                arguments[name] = convert(value) if convert else value
            except Exception as error:
                raise TypeError(f"{self.__name__}, argument {name}: {error}") from error
        self._signature.bind(**arguments)
        return self.function(**arguments)

    def run_inline(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call here and now, without a server, as a worker would: arguments and result pass
        through JSON. Outcomes are raised."""
        from corvo_client.execution import run_inline

        item: Any = self.item(*args, **kwargs)
        job = {"payload": None, **item, "job_id": "inline", "attempt": 1, "max_retries": 1}
        job = json_text.decode(json_text.encode(job | {"lease_token": "", "fencing": 0}))
        result = run_inline(self, d.Delivery(job), self.app.middlewares)
        loaded: R = self._load_result(result) if self._load_result else result
        return loaded


class SyncTask(Task[P, R]):
    """A task of an ordinary function; a call runs it here."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task of an asynchronous function; a call returns its coroutine."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        result: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return result


class _Decorator:
    """Makes a task of a function."""

    def __init__(self, make: Callable[[Callable[..., Any]], Any]) -> None:
        self._make = make

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncTask[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        return self._make(function)


class App:
    """Tasks and handlers, and the server that they belong to. The options are those of a client.

    `exc_to_fail` turns an exception into the error text and backtrace that are stored, for example
    without secrets.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        before_enqueue: Sequence[Hook] = (),
        exc_to_fail: ExceptionToFail | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.base_url = base_url
        self.options = options
        self.hooks = list(before_enqueue)
        self.exc_to_fail = exc_to_fail
        self.middlewares: list[Middleware] = []
        self.handlers: dict[tuple[str, str | None], Handler] = {}
        self._client: Client | None = None
        self._async_clients: WeakKeyDictionary[Any, AsyncClient] = WeakKeyDictionary()

    @property
    def client(self) -> Client:
        """The client that blocks."""
        if self._client is None:
            self._client = Client(self.base_url, before_enqueue=self.hooks, **self.options)
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            self._async_clients[loop] = self.new_async_client(**self.options)
        return self._async_clients[loop]

    def new_async_client(self, **options: Unpack[ClientOptions]) -> AsyncClient:
        """Return a client of asyncio for these servers."""
        return AsyncClient(self.base_url, before_enqueue=self.hooks, **options)

    def connect(self, base_url: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        """Use other servers from now on, for example those of a test."""
        self.close()
        self.base_url = base_url
        self.options = ClientOptions(**{**self.options, **options})
        self._async_clients.clear()

    def close(self) -> None:
        """Close the idle connections of the client that blocks."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def task(
        self,
        queue: str | None = None,
        *,
        name: str | None = None,
        retries: int | None = None,
        executor: Executor = "thread",
        **options: Unpack[EnqueueOptions],
    ) -> _Decorator:
        """Make a task of a function. Its queue is the name of the function by default; several
        tasks of one queue each have a `name`, which is the tag `task` of their jobs. `retries` is
        the number of attempts in total."""
        if retries is not None:
            options["max_retries"] = retries

        def make(function: Callable[..., Any]) -> Any:
            kind = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
            made: Any = kind(self, function, queue or function.__name__, name, executor, options)
            self._add(made.queue, name, made)
            return made

        return _Decorator(make)

    def register(
        self,
        queue: str,
        handler: Callable[[d.Delivery, Context], Any],
        *,
        executor: Executor = "thread",
    ) -> None:
        """Run a function of job and context for a queue; `*` means all queues without another
        handler."""
        self._add(queue, None, FunctionHandler(handler, executor))

    def handler(
        self, queue: str, *, executor: Executor = "thread"
    ) -> Callable[[Callable[[d.Delivery, Context], T]], Callable[[d.Delivery, Context], T]]:
        """Register the decorated function."""

        def made(
            function: Callable[[d.Delivery, Context], T],
        ) -> Callable[[d.Delivery, Context], T]:
            self.register(queue, function, executor=executor)
            return function

        return made

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every handler in a context manager that takes the context. The first one added is
        the outermost; it sees the exceptions of the handler."""
        self.middlewares.append(function)
        return function

    def find(self, job: d.Delivery) -> Handler | None:
        """Return the handler of a job."""
        name = (job.tags or {}).get("task")
        for key in ((job.queue, name), (job.queue, None), ("*", None)):
            if key in self.handlers:
                return self.handlers[key]
        return None

    def queues(self) -> Iterable[str]:
        """Return the queues that have handlers."""
        return dict.fromkeys(queue for queue, _ in self.handlers if queue != "*")

    def _add(self, queue: str, name: str | None, handler: Handler) -> None:
        if (queue, name) in self.handlers:
            raise ValueError(
                f"queue {queue!r} has a handler already: give each task of it another name"
            )
        self.handlers[queue, name] = handler
