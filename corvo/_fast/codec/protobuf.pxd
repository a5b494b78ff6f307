cdef int _STRING
cdef int _INT32
cdef int _INT64
cdef int _UINT64
cdef int _BOOL
cdef int _DOUBLE
cdef int _MESSAGE
cdef int _VARINT
cdef int _FIXED64
cdef int _SIZED
cdef int _GROUP
cdef int _END_GROUP
cdef int _FIXED32
cdef int _DEPTH_MAX
cdef int _FIELDS_PER_ITEM
cdef unsigned long long _TAG_MAX
cdef unsigned long long _ALL_BITS


cdef class Field:
    cdef readonly int number, kind, wire
    cdef readonly str name
    cdef readonly bint repeated, optional, is_map
    cdef readonly Message message
    cdef readonly bytes tag
    cdef readonly object default


cdef class Message:
    cdef readonly str name
    cdef readonly bint is_entry
    cdef readonly list fields
    cdef readonly dict by_number


cdef class _Reader:
    cdef bytes data
    cdef Py_ssize_t at, items_left, items_max, fields_left

    cdef _read_message(self, Message message, Py_ssize_t end, dict values, int depth)
    cdef _read_part(self, Field field, Py_ssize_t end, dict values, int depth)
    cdef _read_scalar(self, Field field, Py_ssize_t end)
    cdef unsigned long long _read_varint(self, Py_ssize_t end) except? 1
    cdef Py_ssize_t _read_size(self, Py_ssize_t end) except -1
    cdef _skip(self, unsigned long long number, int wire, Py_ssize_t end, int depth)
    cdef _skip_group(self, unsigned long long number, Py_ssize_t end, int depth)
    cdef _count_field(self)
    cdef _count_item(self)


cpdef dict decode(Message message, bytes data, Py_ssize_t items_max)
cpdef bytes encode(Message message, dict values)
cpdef bytes encode_varint(value)
cpdef Py_ssize_t varint_size(unsigned long long value) noexcept
cdef bint _is_default(Field field, value) except -1
cdef _put_message(Message message, dict values, list pieces)
cdef _put_value(Field field, value, list pieces)
