cimport cython

from corvo._fast.codec cimport keys
from corvo.fsm.state.groups cimport stands
from corvo.model cimport Job

cdef int ACTIVE, COMPLETED, HELD, PENDING, RETRYING, SCHEDULED
cdef tuple ENDED

cpdef long long due_ns(Job job) except? -1
cpdef long long hold_ends_ns(Job job) except? -1
cpdef long long expires_ns(Job job) except? -1
cpdef bytes expiry_key(Job job)
cpdef long long finished_ns(Job job) except? -1


@cython.locals(state=cython.int)
cpdef bytes index_key(Job job)


@cython.locals(value=bytes)
cpdef bytes index_value(Job job)


@cython.locals(state=cython.int)
cdef bytes _index_value(Job job)
