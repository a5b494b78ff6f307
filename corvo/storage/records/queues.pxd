from corvo.model cimport Queue

cpdef bytes encode_queue(Queue queue)
