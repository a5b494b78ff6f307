cimport cython

from corvo.fsm cimport states
from corvo.fsm.state.state cimport Core
from corvo.fsm.state.queue_index cimport Lane
from corvo.model cimport Job

cdef int COMPLETED, _ACK, _COMPLETED

cpdef end_lease(Job job)


@cython.locals(state=cython.int)
cpdef complete(Core core, Lane lane, Job job, bytes result, bytes step)
cpdef bint overdue(Core core, Job job) except -1
