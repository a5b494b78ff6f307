cimport cython

from corvo.fsm cimport states
from corvo.fsm.core cimport Core
from corvo.fsm.lane cimport Lane
from corvo.model cimport Job

cdef int COMPLETED, _ACK, _COMPLETED

cpdef end_lease(Job job)


@cython.locals(state=cython.int)
cpdef complete(Core core, Lane lane, Job job, bytes result, bytes step)
cpdef bint overdue(Core core, Job job) except -1
