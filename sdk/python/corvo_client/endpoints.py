"""Methods that both clients have, each written once.

`endpoint` makes a method of a function that describes a request as a `Call`; `routine` one of a
generator of steps, for work of several requests; `stream` one of a generator that emits values. A
`Client` runs the method and returns the result or an iterator, an `AsyncClient` returns a coroutine
or an asynchronous iterator. Type checkers see the parameters of the function in both cases.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from corvo_client.core import Call, Emissions, Steps

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """A client that returns results."""

    def run(self, steps: Steps[T]) -> T:
        """Carry out the steps and return their result."""
        raise NotImplementedError

    def iterate(self, steps: Emissions[T]) -> Iterator[T]:
        """Carry out the steps and yield the values that they emit."""
        raise NotImplementedError


class Awaiting:
    """A client that returns coroutines."""

    def run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that carries out the steps and returns their result."""
        raise NotImplementedError

    def iterate(self, steps: Emissions[T]) -> AsyncIterator[T]:
        """Return an asynchronous iterator over the values that the steps emit."""
        raise NotImplementedError


class Routine(Generic[P, T]):
    """A method that takes several steps."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.steps = steps
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, client: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        return self if client is None else partial(self._run, client)

    def _run(self, client: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client.run(self.steps(client, *args, **kwargs))


class Endpoint(Routine[P, T]):
    """A method that sends one request, with the facts of its route."""

    def __init__(
        self,
        method: str,
        path: str,
        describe: Callable[Concatenate[Any, P], Call[T]],
        once: bool,
        repeats: bool,
    ) -> None:
        self.method, self.path, self.once, self.repeats = method, path, once, repeats
        self.describe = describe
        super().__init__(self._steps)
        self.__doc__ = describe.__doc__

    def _steps(self, client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        call = self.describe(client, *args, **kwargs)
        return client.core.perform(  # type: ignore[no-any-return]
            self.method, self.path, call, self.once, self.repeats
        )


class Stream(Generic[P, T]):
    """A method that gives values one by one."""

    method, path = "", ""  # of the route, if there is one of its own

    def __init__(self, steps: Callable[Concatenate[Any, P], Emissions[T]]) -> None:
        self.steps = steps
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, client: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: Any) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Awaiting, owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        return self if client is None else partial(self._iterate, client)

    def _iterate(self, client: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client.iterate(self.steps(client, *args, **kwargs))


def endpoint(
    method: str, path: str, *, once: bool | None = None, repeats: bool = False
) -> Callable[[Callable[Concatenate[Any, P], Call[T]]], Endpoint[P, T]]:
    """Make a method of a function that describes a request. Writes carry an idempotency key
    unless `once` is false; a request that `repeats` may be sent twice without one."""
    if once is None:
        once = method != "GET"

    def made(describe: Callable[Concatenate[Any, P], Call[T]]) -> Endpoint[P, T]:
        return Endpoint(method, path, describe, once, repeats or method == "GET")

    return made


def stream(
    path: str = "",
) -> Callable[[Callable[Concatenate[Any, P], Emissions[T]]], Stream[P, T]]:
    """Make a method of a generator that emits values; `path` is its route, if it is a route."""

    def made(steps: Callable[Concatenate[Any, P], Emissions[T]]) -> Stream[P, T]:
        result = Stream(steps)
        result.method, result.path = "GET", path
        return result

    return made
