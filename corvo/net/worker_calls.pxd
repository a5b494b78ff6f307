from corvo._fast.protobuf cimport encode_varint
from corvo.model cimport Fetched

cpdef dict job_values(Fetched job)
cpdef bytes job_message(Fetched job)
