from corvo._fast.http2.headers cimport Field
from corvo._fast.http2.huffman cimport huffman_decode

cdef int _STATIC_COUNT


cdef class FieldTable:
    cdef readonly Py_ssize_t size, size_max
    cdef list _fields

    cdef _make_room(self, Py_ssize_t size)
    cpdef add(self, Field field)
    cpdef Field get(self, long long number)
    cpdef resize(self, Py_ssize_t size_max)


cdef class Decoder:
    cdef readonly FieldTable table
    cdef Py_ssize_t _list_size_max, _list_size_fatal, _at
    cdef bytes _known_block
    cdef list _known_fields

    cdef _resize(self, bytes block)
    cdef Field _known(self, long long number)
    cdef Field _literal(self, bytes block, int mask)
    cdef long long _number(self, bytes block, int mask) except -1
    cdef bytes _text(self, bytes block)
    cpdef list decode(self, bytes block)


cdef class Encoder:
    cdef readonly FieldTable table
    cdef Py_ssize_t _resized_to

    cpdef bytes start_block(self)
