cimport cython

from corvo._fast cimport keys
from corvo.model cimport Job

cpdef due_ns(Job job)
cdef int ACTIVE, COMPLETED, PENDING, RETRYING, SCHEDULED

cpdef finished_ns(Job job)


@cython.locals(state=cython.int)
cpdef bytes index_key(Job job)


@cython.locals(state=cython.int)
cpdef bytes index_value(Job job)
