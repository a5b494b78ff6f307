cimport cython

from corvo._fast.codec.names cimport check_name, is_name

cdef unsigned char _VERSION
cdef Py_ssize_t _ROOM, _NUMBER_SIZE, _SHARED_MAX
cdef unsigned long long _SECOND_NS, _SECONDS_MAX, _I64_MAX


@cython.final
cdef class Writer:
    cdef bytearray _buffer
    cdef unsigned char *_p
    cdef Py_ssize_t _at, _room

    cdef _map(self)
    cdef _grow(self, Py_ssize_t size)
    cdef void begin(self) noexcept
    cdef void begin_text(self) noexcept
    cdef bytes done(self)
    cdef int u(self, unsigned long long value) except -1
    cdef int i(self, long long value) except -1
    cdef int t(self, value) except -1
    cdef int f(self, bint value) except -1
    cdef int b(self, bytes data) except -1
    cdef int w(self, Writer other) except -1
    cdef int fields(self, Writer other) except -1
    cdef int s(self, str text) except -1
    cdef int p(self, str text, str before) except -1
    cdef int raw(self, bytes data) except -1
    cdef int text(self, str text) except -1
    cdef int decimal(self, unsigned long long value) except -1
    cdef int hole(self, Py_ssize_t size) except -1
    cdef int _byte(self, unsigned char value) except -1
    cdef int _put(self, const char *data, Py_ssize_t size) except -1
    cdef int _copy(self, const char *data, Py_ssize_t size) except -1


@cython.final
cdef class Reader:
    cdef bytes _data
    cdef const unsigned char *_p
    cdef Py_ssize_t _at, _end, _number

    cdef begin(self, bytes data)
    cdef bint more(self) except -1
    cdef done(self)
    cdef _error(self, str why)
    cdef unsigned long long _uvarint(self) except? 0xFFFFFFFFFFFFFFFF
    cdef Py_ssize_t _size(self) except -1
    cdef Py_ssize_t u(self) except? -1
    cdef Py_ssize_t i(self) except? -1
    cdef t(self)
    cdef bint f(self) except -1
    cdef bytes b(self)
    cdef str s(self)
    cdef str _text(self, Py_ssize_t size)
    cdef str n(self)
    cdef str o(self)
    cdef list names(self)
    cdef list texts(self)
