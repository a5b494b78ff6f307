"""Keys, documents and the LMDB base they live in.

The base holds the state as of the last flush, as rows of one sorted table. Keys are built by
`corvo._fast.keys`, documents are written by `corvo.kv.documents` and `corvo.kv.meta`. `number` is
a queue's number (4 bytes), `seq` a job's place in its queue (8 bytes); integers in keys are
big-endian. Every live job has exactly one of the rows marked with a star, in the family of its
state, every finished one a `t|` row.

    key                             value
    j|id                            job head: all that a transition rewrites, and a small body
    jb|id                           job body: what it was enqueued with, written once; only when
                                    it is too large to be rewritten with the head
    jd|id                           job data: checkpoint, progress, result; only when one is set
    jx|id                           job extras: group, expiry, hold, batch, chain, dependencies;
                                    only when the job has any, which its head says
    je|id 00 slot:4                 error record, slots in order of time
    p|number priority:1 seq     *   id of a ready job
    a|number seq                *   active job: lease_expires_ns:8 fencing:8 id
    s|number seq                *   scheduled job: due_ns:8 0:8 id
    r|number seq                *   retrying job: due_ns:8 0:8 id
    t|finished_ns:8 number seq      id of a job that has ended, in order of time for the purge
    qc|name                         queue: number, configuration, counters, next seq
    u|number keyhash:16             unique lock: job id, expiry, full key
    w|id                            worker
    sc|id                           schedule: configuration, job template, next and last run
    ev|first_seq:8                  events of one log entry, packed
    m|                              meta row: what the other rows add up to
"""
