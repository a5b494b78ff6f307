"""The state store: rows of one sorted table in LMDB, and the files around it.

    lmdb         the LMDB environment: open, read, write, check space
    rows         the row interface that LMDB and memory implement
    memory       rows in memory, for tests and the simulator
    reader       read transactions of other processes
    backup       a program that makes and checks compact copies of the store
    generations  the `state.<generation>/` folders and the CURRENT file
    data_dir     the data directory, its lock and the identity of the node
    records/     encodings of records

The store holds the state as of the last flush. `corvo._fast.codec.keys` builds keys,
`corvo.storage.records` encodes values. `number` is a queue's number (4 bytes), `seq` a job's
position in its queue (8 bytes). Integers in keys are big-endian. Every job has exactly one of the
rows marked with a star, in the family of its state. If the job has a group key, 00, its priority
and the group key follow the id in that row.

    Key                             value
    j|id                            job head: fields that transitions rewrite, small data, and a
                                    small body
    jb|id                           job body: the fields set at enqueue, written once; only if it is
                                    too large to be rewritten with the head
    jd|id                           job data: checkpoint, progress, result; only if they were once
                                    too large to be written with the head
    jx|id                           job options: group, expiry, hold, batch, chain, dependencies;
                                    only if the head says that the job has some
    je|id 00 index:4                error record; indexes are in order of time
    jl|id                           log: the list of its blocks; only if the options say that the
                                    job has log lines
    jlb|id 00 first_seq:8           log block: some log lines of one attempt
    p|number priority:1 seq     *   id of a ready job
    a|number seq                *   active job: lease_expires_ns:8 fencing:8 id
    s|number seq                *   scheduled job: due_ns:8 0:8 id
    r|number seq                *   retrying job: due_ns:8 0:8 id
    h|number seq                *   held job: hold_ends_ns:8 (0 = never) 0:8 id
    t|number state:1 time:8 seq *   id of a finished job, in order of time for the purge
    x|number seq                    expires_ns:8 0:8 id of an unfinished job that expires
    k|number seq                *   id of a pending job that waits for its dependencies
    qc|name                         queue: number, configuration, counters, next seq
    g|number group:8                group of jobs: group key, last turn
    l|number stamp_ns:8             number of jobs that a queue with a rate limit started at a stamp
    u|number keyhash:16             unique lock: job id, expiry, full key
    w|id                            worker
    bt|id                           bulk operation: action, progress and counts of outcomes
    bc|id 00 chunk:4                job ids of a bulk operation, then their outcomes once done
    sc|id                           schedule: configuration, job template, next and last run
    d|id 00 dependent               a job that depends on the job with this id
    ds|id                           state of a finished job that has pending dependents
    c|id 00 child                   a job that names the job with this id as its parent
    b|id                            batch: callbacks, counts
    bm|id 00 job                    open member of a batch
    bf|finished_ns:8 id             finished batch, in order of time for the purge
    ik|number:8                     idempotency record: digest of the key, stamp, key, fingerprint
                                    of the request, outcome
    ev|first_seq:8                  events of one log entry, packed
    m|                              meta row: applied index, clock, counters, hash
    o|index:8                       outbox: names of records that the flush with this index changed
    of|                             state of the outbox: its epoch, and the index of its floor

The two outbox families belong to this node's copy of the store. Other nodes have other rows there.
"""
