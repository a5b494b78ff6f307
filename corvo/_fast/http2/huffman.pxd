cdef tuple _LENGTHS
cdef int _END
cdef int _SILENT
cdef int _EMITS
cdef int _FAILS
cdef list _CODES
cdef bytes _FOLLOWING
cdef bytes _ACTIONS
cdef bytes _SYMBOLS
cdef bytes _ENDS


cpdef bytes huffman_decode(bytes data, Py_ssize_t start, Py_ssize_t end)
