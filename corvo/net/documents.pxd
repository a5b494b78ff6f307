cimport cython

from corvo.model cimport Fetched


cdef long long _SECOND_NS


@cython.locals(parts=list, runs=str, lease=str)
cpdef bytes fetched_document(Fetched job)
