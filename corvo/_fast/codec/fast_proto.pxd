from corvo._fast.codec.fields cimport Writer
from corvo._fast.codec.fast_json cimport is_job_id, is_value

cdef Py_ssize_t _ID_SIZE
cdef unsigned char _VERSION, _SPACE, _DELETE
cdef Py_ssize_t _NAME_SIZE_MAX
cdef int _VARINT, _FIXED64, _SIZED, _FIXED32
cdef long long _TEXT_1, _TEXT_2, _ACKS, _ENQUEUES, _TOKEN
cdef unsigned char _IDS_TAG
cdef bytes _NULL, _EMPTY


cdef class FastAcks:
    cdef readonly bytes payload
    cdef readonly Py_ssize_t count


cdef class FastEnqueues:
    cdef bytes _items
    cdef readonly Py_ssize_t count
    cdef readonly list queues
    cdef readonly bytes ids

    cpdef bytes encode(self, list[str] ids)


cdef class FastFrames:
    cdef bytes _front, _tail, _data, _name
    cdef Py_ssize_t _payload_size_max, _result_size_max, _at
    cdef const unsigned char *_p
    cdef Writer _acks, _enqueues
    cdef list _names, _counts

    cpdef tuple read(self, bytes data, Py_ssize_t acks_max, Py_ssize_t enqueues_max)
    cdef long long _varint(self, Py_ssize_t end) noexcept
    cdef bint _skip(self, long long tag, Py_ssize_t end) noexcept
    cdef long long _text(self, Py_ssize_t end) noexcept
    cdef bint _read_ack(self, Py_ssize_t end) except -1
    cdef bint _is_json(self, Py_ssize_t start, Py_ssize_t size, Py_ssize_t size_max) except -1
    cdef bint _read_enqueue(self, Py_ssize_t end) except -1
    cdef bint _take_queue(self, Py_ssize_t start, Py_ssize_t size) except -1
    cdef _copy(self, Writer w, Py_ssize_t start, Py_ssize_t size)
