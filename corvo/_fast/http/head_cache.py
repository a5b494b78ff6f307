"""Cache of request heads that repeat.

A client sends the same bytes as the head of each request of a kind, and so do other clients of one
library. A head that has arrived twice is kept with its parsed form; a later copy is compared and
not parsed. Only common heads are kept (`corvo._fast.http.head.is_cacheable_head`): none with
credentials, with the id of one request, or with a rare field.
"""

from typing import Any, Final

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp

from corvo._fast.http.exchange import Request

_HEADS_MAX: Final = 8
_SIZE_MAX: Final = 512  # of a head; nearly all are shorter
_SEEN: Final = 16


class CachedHead:
    """A head, and what a request has of it."""

    def __init__(self, head: bytes, request: Request) -> None:
        self.head = head
        self.method = request.method
        self.path = request.path
        self.query = request.query
        self.host = request.host
        self.content_type = request.content_type
        self.content_length = request.content_length
        self.namespace = request.namespace
        self.min_index = request.min_index
        self.client_name = request.client_name
        self.client_version = request.client_version

    def fill(self, request: Request) -> None:
        """Have a new request say the same."""
        request.method = self.method
        request.path = self.path
        request.query = self.query
        request.host = self.host
        request.content_type = self.content_type
        request.content_length = self.content_length
        request.namespace = self.namespace
        request.min_index = self.min_index
        request.client_name = self.client_name
        request.client_version = self.client_version


class HeadCache:
    """The heads that all connections of a server know."""

    def __init__(self) -> None:
        self._cached: list[Any] = []
        self._seen = [b""] * _SEEN  # the last one of each size, roughly
        self._oldest = 0

    def find(self, data: bytes, pos: cython.Py_ssize_t) -> CachedHead | None:
        """The known head that begins at `pos`, or None."""
        p: cython.p_const_uchar = data
        left: cython.Py_ssize_t = len(data) - pos
        cached: CachedHead
        for cached in self._cached:
            size: cython.Py_ssize_t = len(cached.head)
            if size <= left and _begins(p, pos, cached.head, size):
                return cached
        return None

    def learn(self, request: Request, head: bytes) -> None:
        """Remember a plain head that was just read into a request, if it comes for the second
        time."""
        size: cython.Py_ssize_t = len(head)
        at: cython.Py_ssize_t = size % _SEEN
        if head != self._seen[at]:
            self._seen[at] = head if size <= _SIZE_MAX else b""
        elif not _is_special(request):
            if len(self._cached) < _HEADS_MAX:
                self._cached.append(CachedHead(head, request))
            else:
                self._cached[self._oldest] = CachedHead(head, request)
                self._oldest = (self._oldest + 1) % _HEADS_MAX


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _begins(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, head: bytes, size: cython.Py_ssize_t
) -> cython.bint:
    if cython.compiled:
        expected: cython.p_const_uchar = head
        return memcmp(p + at, expected, size) == 0
    else:
        return p[at : at + size] == head


def _is_special(request: Request) -> cython.bint:
    return (
        request.authorization is not None
        or request.api_key is not None
        or request.cookie is not None
        or request.request_id is not None
        or request.idempotency_key is not None
        or request.forwarded is not None
        or request.origin is not None
        or request.fetch_site is not None
        or request.rare is not None
    )
