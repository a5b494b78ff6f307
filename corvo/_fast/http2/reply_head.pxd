from corvo._fast.http.exchange cimport H1Context, Request
from corvo._fast.http2.hpack cimport Encoder

cdef Py_ssize_t _READY
cdef tuple _SIZES
cdef tuple _TIMINGS
cdef tuple _THOUSANDTHS
cdef tuple _LENGTHS
cdef tuple _JSON_LENGTHS


cdef class ReplyHeads:
    cdef H1Context _context
    cdef Encoder _encoder
    cdef bytes _date
    cdef dict _starts
    cdef long long _index
    cdef bytes _index_field

    cdef set_table_size(self, long long size)
    cdef bytes render(self, Request request)
    cdef bytes render_trailers(self, bytes lines)
    cdef bytes _render_start(self, int status)
    cdef bytes _render_index(self, long long index)


cdef bytes _plain(bytes text)
cdef list _fields_of(bytes lines)
