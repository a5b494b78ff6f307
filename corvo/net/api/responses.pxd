cimport cython

from corvo._fast.codec.fields cimport Writer
from corvo.model cimport Fetched


cdef long long _SECOND_NS
cdef Writer _writer


@cython.locals(w=Writer)
cpdef bytes fetched_document(Fetched job)
