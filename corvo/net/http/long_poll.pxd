from corvo._fast.http.exchange cimport Request

cpdef long long began_ns(Request request) except? -1
