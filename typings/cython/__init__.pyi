"""The words of Cython that `corvo/_fast` uses, as mypy sees them.

A C integer is an int and a character a str. Pointers are bytes or bytearrays when interpreted, and
pointers when compiled: neither they nor what comes from `cython.cimports` is checked.
"""

import builtins
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, overload

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

compiled: bool

bint: TypeAlias = bool
double: TypeAlias = float
int: TypeAlias = builtins.int
char: TypeAlias = builtins.int
uchar: TypeAlias = builtins.int
uint: TypeAlias = builtins.int
longlong: TypeAlias = builtins.int
ulonglong: TypeAlias = builtins.int
Py_ssize_t: TypeAlias = builtins.int
size_t: TypeAlias = builtins.int
Py_UCS4: TypeAlias = str

p_char: TypeAlias = Any
p_uchar: TypeAlias = Any
p_ulonglong: TypeAlias = Any
p_const_char: TypeAlias = Any
p_const_uchar: TypeAlias = Any
void: TypeAlias = Any
NULL: Any

def cfunc(function: _F) -> _F: ...
def ccall(function: _F) -> _F: ...
def inline(function: _F) -> _F: ...
def cclass(cls: type[_T]) -> type[_T]: ...
def final(cls: type[_T]) -> type[_T]: ...
def freelist(size: builtins.int) -> Callable[[type[_T]], type[_T]]: ...
def exceptval(value: Any = ..., check: bool = ...) -> Callable[[_F], _F]: ...
@overload
def cast(kind: type[_T], value: object) -> _T: ...
@overload
def cast(kind: Any, value: Any) -> Any: ...
@overload
def declare(kind: Any, *, visibility: str = ...) -> Any: ...
@overload
def declare(kind: Any, value: _T) -> _T: ...
def address(value: Any) -> Any: ...
