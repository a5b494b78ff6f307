cimport cython

from corvo.fsm cimport states
from corvo.fsm.state.state cimport State
from corvo.fsm.state.queue_index cimport QueueIndex
from corvo.model cimport Job

cdef int COMPLETED, _ACK, _COMPLETED

cpdef end_lease(Job job)


@cython.locals(job_state=cython.int)
cpdef complete(State state, QueueIndex queue_index, Job job, bytes result, bytes step)
cpdef bint overdue(State state, Job job) except -1
