ctypedef unsigned long long u64

cpdef bytes job(str job_id)
cpdef bytes body(str job_id)
cpdef bytes data(str job_id)
cpdef bytes extras(str job_id)
cpdef bytes pending(u64 number, u64 priority, u64 seq)
cpdef bytes placed(bytes family, u64 number, u64 seq)
cpdef bytes due(u64 due_ns, u64 fencing, str job_id)
cpdef bytes grouped(bytes value, u64 priority, str group)
cpdef bytes finished(u64 number, u64 state, u64 finished_ns, u64 seq)
cpdef bytes queue(str name)
cpdef bytes group(u64 number, u64 group_number)
cpdef bytes events(u64 first_seq)
