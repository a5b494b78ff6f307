cimport cython

from corvo._fast.metrics cimport RouteMetrics
from corvo._fast.http.exchange cimport Request

cdef int _PERCENT, _SLASH

cdef str _decode(bytes segment)


@cython.final
cdef class Route:
    cdef readonly str method, pattern, name, at, needs, returned_by
    cdef readonly bint namespaced, takes_key, waits, stream, names_leader
    cdef readonly tuple nothing, query
    cdef readonly object handler
    cdef readonly RouteMetrics route_metrics


@cython.final
cdef class _Node:
    cdef dict literals, routes
    cdef _Node parameter


cdef class Router:
    cdef readonly tuple routes
    cdef _Node _root
    cdef dict _literal, _leading
    cdef object _with_key

    @cython.locals(route=Route)
    cpdef handle(self, Request request)
    cdef _handle_headers(self, Request request, Route route)

    @cython.locals(route=Route)
    cpdef Route find(self, Request request)

    @cython.locals(
        node=_Node, route=Route, cut=cython.Py_ssize_t, params=tuple,
        raw=cython.p_const_uchar, size=cython.Py_ssize_t
    )
    cpdef tuple match(self, str method, bytes path)

    @cython.locals(node=_Node)
    cdef _add(self, Route route)

    @cython.locals(node=_Node, following=_Node)
    cdef tuple _walk(self, bytes path)

    @cython.locals(node=_Node)
    cdef str _allow(self, bytes path)
