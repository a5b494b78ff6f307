from corvo.fsm.core cimport Core
from corvo.fsm.lane cimport Lane
from corvo.model cimport Job

cpdef end_lease(Job job)
cpdef complete(Core core, Lane lane, Job job)
