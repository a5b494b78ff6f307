cimport cython

from corvo.model cimport JobOptions, Job

cpdef dict tags_of(Job job)


@cython.locals(
    values=list, shape=cython.longlong, bit=cython.longlong, value=bytes, word=str, rest=tuple,
    text=bytes
)
cpdef tuple new_values(Job job, str queue)


@cython.locals(options=JobOptions)
cdef tuple _rest_of(Job job)


@cython.locals(options=JobOptions)
cpdef tuple changing_values(Job job, str queue)
