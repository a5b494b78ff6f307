"""The state store: rows of one sorted table in LMDB, and files around it.

    lmdb         the LMDB environment: open, read, write, check space
    rows         the row interface that LMDB and memory implement
    memory       rows in memory, for tests
    reader       read transactions of other processes
    backup       a compact copy of the store at a flush
    generations  `state.<generation>/` folders and the CURRENT file
    data_dir     the data directory and its lock
    records/     encodings of records

The store holds the state as of the last flush. `corvo._fast.codec.keys` builds keys,
`corvo.storage.records` encodes values. `number` is a queue's number (4 bytes), `seq` a job's
position in its queue (8 bytes); integers in keys are big-endian. Every job has exactly one of the
rows marked with a star, in the family of its state. For a job of a group, 00, its priority and the
group key follow the id in that row.

    key                             value
    j|id                            job head: all that a transition rewrites, small data, and a
                                    small body
    jb|id                           job body: what it was enqueued with, written once; only when
                                    it is too large to be rewritten with the head
    jd|id                           job data: checkpoint, progress, result; only when they were
                                    once too large to be written with the head
    jx|id                           job extras: group, expiry, hold, batch, chain, dependencies;
                                    only when the job has any, which its head says
    je|id 00 slot:4                 error record, slots in order of time
    jl|id                           log: what its blocks add up to; only when the job has log lines,
                                    which its extras say
    jlb|id 00 first_seq:8           log block: some log lines of one attempt
    p|number priority:1 seq     *   id of a ready job
    a|number seq                *   active job: lease_expires_ns:8 fencing:8 id
    s|number seq                *   scheduled job: due_ns:8 0:8 id
    r|number seq                *   retrying job: due_ns:8 0:8 id
    h|number seq                *   held job: hold_ends_ns:8 (0 = never) 0:8 id
    t|number state:1 time:8 seq *   id of a job that has ended, in order of time for the purge
    x|number seq                    expires_ns:8 0:8 id of a job that has not ended and expires
    k|number seq                *   id of a pending job that waits for other jobs
    qc|name                         queue: number, configuration, counters, next seq
    g|number group:8                group of jobs: group key, last turn
    l|number stamp_ns:8             how many jobs a queue with a rate limit handed out at one stamp
    u|number keyhash:16             unique lock: job id, expiry, full key
    w|id                            worker
    bt|id                           task on many jobs: what to do, how far it is, what came of it
    bc|id 00 chunk:4                job ids of a task; behind them what came of each, once done
    sc|id                           schedule: configuration, job template, next and last run
    d|id 00 dependent               a job that waits for the job with this id
    ds|id                           a job that ended while dependents have not heard of it: state
    c|id 00 child                   a job that names the job with this id as its parent
    b|id                            batch: callbacks, counts
    bm|id 00 job                    open member of a batch
    bf|finished_ns:8 id             batch that has finished, in order of time for the purge
    ik|number:8                     outcome of a request with an idempotency key: digest of the key,
                                    stamp, key, fingerprint of the request, outcome
    ev|first_seq:8                  events of one log entry, packed
    m|                              meta row: what the other rows add up to
    o|index:8                       outbox: documents that the flush with this index has changed
    of|                             state of the outbox: its epoch, and the index of its floor

The last two are about this copy of the base alone: another node has others.
"""
