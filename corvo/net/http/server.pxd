cimport cython

from corvo._fast.http.http1 cimport H1Conn
from corvo._fast.metrics cimport TurnMetrics
from corvo._fast.http.exchange cimport H1Context, HttpConn, Request


@cython.final
cdef class Server:
    cdef public object handle, clock, limits, loop
    cdef public H1Context context
    cdef public object on_drain
    cdef public TurnMetrics turns
    cdef public set connections
    cdef public dict by_address
    cdef public Py_ssize_t admitted
    cdef public bint draining
    cdef list _dirty
    cdef bint _flush_due
    cdef object _timer, _all_gone
    cdef readonly list _listeners

    @cython.locals(connection=Connection, dirty=list)
    cpdef flush(self)
    cpdef str admit(self, transport)
    cpdef release(self, str address)
    cpdef opened(self, Connection connection)
    cpdef gone(self, Connection connection)
    cpdef mark(self, Connection connection)

    @cython.locals(request=Request)
    cpdef serve(self, list requests)


@cython.final
cdef class Connection:
    cdef public Server server
    cdef public str peer
    cdef public object transport
    cdef public HttpConn http
    cdef bint _dirty, _reading, _next_due
    cdef list _held
    cdef bint _ended, _secure
    cdef long long _lingers_until_ns, _stalled_since_ns
    cdef Py_ssize_t _stalled_size

    cpdef data_received(self, bytes data)

    @cython.locals(http=HttpConn, data=bytes)
    cpdef flush(self)
    cpdef _on_output(self)

    @cython.locals(http=HttpConn)
    cdef _read_on(self)

    @cython.locals(requests=list)
    cdef list _feed(self, HttpConn http, bytes data)

    @cython.locals(http=HttpConn)
    cdef _serve(self, list requests)
    cdef bint _may_serve(self, HttpConn http) except -1
    cdef _linger(self)
