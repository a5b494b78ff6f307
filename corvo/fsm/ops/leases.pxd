from corvo._fast.codec.lease_token cimport build_token
from corvo.fsm.state.state cimport State
from corvo.model cimport Job

cdef int ACTIVE
cdef long long _SEED_MASK

cpdef str token(Job job)
cpdef refusal(Job job, str given, int trigger)
cpdef grant(State state, Job job, str worker_id, str hostname, long long lease_ns)
