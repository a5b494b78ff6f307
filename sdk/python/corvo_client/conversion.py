"""Arguments and results of tasks: from JSON to the types of the annotations.

msgspec or pydantic convert, if one of them is installed. Without them the plain types of JSON and
dataclasses of those are converted; other annotations are refused when a task is declared.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any

Loader = Callable[[Any], Any]
_PLAIN = (str, int, float, bool, dict, list, type(None), Any)


def loader(annotation: Any) -> Loader | None:
    """Return a function that converts a JSON value to the annotation, None if none is needed.
    Raises TypeError for a type that needs a library."""
    if annotation in _PLAIN:
        return None if annotation in (Any, dict, list) else _checked(annotation)
    converted = _by_library(annotation)
    if converted is not None:
        return converted
    if _is_plain(annotation):
        return None
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _dataclass(annotation)
    raise TypeError(
        f"{annotation!r} cannot be made from JSON: install corvo-client[msgspec] or pydantic"
    )


def _checked(kind: type) -> Loader:
    """Check a plain value; an integer is a number too."""
    allowed = (int, float) if kind is float else (kind,)

    def load(value: Any) -> Any:
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
        return value

    return load


def _by_library(annotation: Any) -> Loader | None:
    try:
        import msgspec
    except ImportError:
        pass
    else:
        try:
            msgspec.json.schema(annotation)  # refuses types that it cannot convert
            return lambda value: msgspec.convert(value, annotation)
        except TypeError:
            pass  # for example a model of pydantic
    try:
        from pydantic import TypeAdapter
    except ImportError:
        return None
    try:
        validate: Loader = TypeAdapter(annotation).validate_python
    except Exception:  # its errors for types without a schema have no common base
        return None
    return validate


def _is_plain(annotation: Any) -> bool:
    """Whether values of JSON are values of the annotation."""
    if annotation in _PLAIN:
        return True
    origin = typing.get_origin(annotation)
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(_is_plain(part) for part in typing.get_args(annotation))
    return origin is typing.Literal


def _dataclass(kind: type) -> Loader:
    hints = typing.get_type_hints(kind)
    loaders = {field.name: loader(hints[field.name]) for field in dataclasses.fields(kind)}

    def load(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"expected an object for {kind.__name__}, got {type(value).__name__}")
        members = {
            name: convert(value[name]) if convert else value[name]
            for name, convert in loaders.items()
            if name in value
        }
        return kind(**members)

    return load
