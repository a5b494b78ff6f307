from corvo.model cimport Fetched

cpdef dict job_values(Fetched job)
cpdef bytes job_message(Fetched job)
