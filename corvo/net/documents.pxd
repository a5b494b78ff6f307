cimport cython

from corvo.model cimport Fetched


@cython.locals(parts=list)
cpdef bytes fetched_document(Fetched job)
