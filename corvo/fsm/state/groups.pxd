cimport cython

from corvo._fast.codec cimport keys
from corvo._fast.index.ready cimport Positions, ReadyIndex
from corvo.fsm.state.row_overlay cimport RowOverlay
from corvo.model cimport Job, Queue

cdef int SEQ_BITS, ACTIVE, PENDING, SCHEDULED
cdef unsigned long long SEQ_MASK
cdef tuple ENDED

cpdef bint stands(Job job) except -1


@cython.final
cdef class Group:
    cdef public str key
    cdef public unsigned long long number, served
    cdef public Positions ready, waiting, postponed, active
    cdef public long long open
    cdef public unsigned long long spot, normal

    cpdef bint empty(self) except -1


@cython.final
cdef class Groups:
    cdef Queue _queue
    cdef RowOverlay _rows
    cdef public dict by_key
    cdef readonly ReadyIndex _rotation
    cdef dict _by_turn
    cdef readonly Positions _normals
    cdef public ReadyIndex ready
    cdef public long long open

    cpdef load_job(self, str key, int state, unsigned long long priority, unsigned long long seq)

    @cython.locals(group=Group)
    cpdef arrive(self, Job job)
    cdef _add(self, Group group, int state, unsigned long long position)

    @cython.locals(group=Group, position=cython.ulonglong)
    cpdef depart(self, Job job)

    @cython.locals(group=Group, turn=cython.ulonglong)
    cpdef serve(self, str key)
    cdef unsigned long long _next_turn(self) except? 0
    cdef _write(self, Group group)

    @cython.locals(group=Group, before=cython.longlong)
    cpdef bint rank(self, str key) except -1

    @cython.locals(group=Group)
    cpdef rank_all(self)

    @cython.locals(count=cython.longlong, spot=cython.ulonglong, normal=cython.ulonglong)
    cdef _position(self, Group group)

    @cython.locals(ready=cython.longlong, limit=cython.longlong)
    cdef Py_ssize_t _count(self, Group group) except -1

    @cython.locals(first=cython.ulonglong, other=cython.ulonglong)
    cpdef unsigned long long in_front(self, Group group, unsigned long long position) except? 0

    @cython.locals(group=Group, spot=cython.ulonglong)
    cpdef unsigned long long first(self, unsigned long long ungrouped) except? 0
    cpdef unsigned long long first_normal(self) except? 0
