from cpython.array cimport array as c_array

cdef int _PRIORITIES, _WINDOW, _SEQ_BITS


cdef class ReadyIndex:
    cdef unsigned long long[3][32] window
    cdef Py_ssize_t[3] start
    cdef Py_ssize_t[3] stop
    cdef Py_ssize_t[3] behind
    cdef unsigned long long[3] run_start  # numbers at the end that are not in the bitmap yet
    cdef unsigned long long[3] run_stop  # one after the last; 0 = none
    cdef list rest

    cdef _put_behind(self, Py_ssize_t priority, unsigned long long seq)
    cdef _rank(self, Py_ssize_t priority)
    cpdef Py_ssize_t count(self, Py_ssize_t priority) except -1
    cpdef add(self, Py_ssize_t priority, unsigned long long seq)
    cpdef remove(self, Py_ssize_t priority, unsigned long long seq)
    cpdef Py_ssize_t before(self, Py_ssize_t priority, unsigned long long seq) except -1
    cpdef unsigned long long first(self) except? 0
    cpdef unsigned long long first_of(self, Py_ssize_t priority) except? 0
    cpdef list first_few(self, Py_ssize_t priority, Py_ssize_t limit)
    cdef unsigned long long _head(self, Py_ssize_t priority) except? 0
    cdef _refill(self, Py_ssize_t priority)
    cdef void _shift(self, Py_ssize_t priority, Py_ssize_t start, Py_ssize_t stop) noexcept


cdef class Positions:
    cdef c_array window
    cdef unsigned long long *at  # the window's memory
    cdef Py_ssize_t room, start, stop, behind
    cdef object rest

    cpdef add(self, unsigned long long position)
    cpdef remove(self, unsigned long long position)
    cpdef unsigned long long first(self) except? 0
    cpdef unsigned long long first_from(self, unsigned long long low) except? 0
    cdef _put_behind(self, unsigned long long position)
    cdef _make_room(self)
    cdef _grow(self, Py_ssize_t room)
    cdef _refill(self)


cdef class DueHeap:
    cdef c_array dues, keys
    cdef long long *due
    cdef unsigned long long *key
    cdef Py_ssize_t size, room

    cpdef push(self, long long due_ns, unsigned long long key)
    cpdef long long first_due(self) except? 0
    cpdef unsigned long long first_key(self) except? 0
    cpdef pop(self)
    cdef _grow(self)
    cdef _map(self)
    cdef void _copy(self, Py_ssize_t source, Py_ssize_t target) noexcept
    cdef _cut(self, Py_ssize_t size)
    cdef void _sink(self, Py_ssize_t at, long long due_ns, unsigned long long key) noexcept
