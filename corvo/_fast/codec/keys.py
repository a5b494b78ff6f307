"""Keys of the rows of the base, so that byte order is the order we want to scan in.

A key is a family prefix that ends in `|`, then its parts; integers are big-endian, unsigned and of
fixed width, texts are UTF-8. No prefix is the beginning of another one. `corvo.storage` lists the
families. Arguments come from validated jobs and from our own counters, so a wrong one is a bug
and an assertion; so is a key of the wrong shape in the parsers.

A row that waits for a time (active, scheduled, retrying, held, expiring) has that time in its
value, with the fencing number and the job id: it is found by place, and the heaps are rebuilt by
one scan. In the value of any row of a job that stands in a group, a zero byte, the priority and the
group's key follow the job id.
"""

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memchr, memcpy

JOB = b"j|"
BODY = b"jb|"
DATA = b"jd|"
ERROR = b"je|"
OPTIONS = b"jx|"
LOG = b"jl|"
LOG_BLOCK = b"jlb|"
PENDING = b"p|"
ACTIVE = b"a|"
SCHEDULED = b"s|"
RETRYING = b"r|"
HELD = b"h|"
EXPIRING = b"x|"
FINISHED = b"t|"
QUEUE = b"qc|"
GROUP = b"g|"
GRANT = b"l|"
UNIQUE = b"u|"
WORKER = b"w|"
SCHEDULE = b"sc|"
EVENTS = b"ev|"
OPERATION = b"bt|"
OPERATION_CHUNK = b"bc|"
BLOCKED = b"k|"
DEPENDENT = b"d|"
PENDING_DEPENDENTS = b"ds|"
CHILD = b"c|"
BATCH = b"b|"
BATCH_MEMBER = b"bm|"
BATCH_FINISHED = b"bf|"
IDEMPOTENCY = b"ik|"
META = b"m|"
OUTBOX = b"o|"
OUTBOX_STATE = b"of|"

HASH_SIZE = 16


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _put_integer(
    p: cython.p_uchar, at: cython.Py_ssize_t, value: cython.ulonglong, width: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    for i in range(width):
        p[at + width - 1 - i] = value & 0xFF
        value >>= 8
    assert value == 0, "integer is negative or too wide"
    return at + width


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _get_integer(
    p: cython.p_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t
) -> cython.ulonglong:
    value: cython.ulonglong = 0
    i: cython.Py_ssize_t
    for i in range(width):
        value = (value << 8) | p[at + i]
    return value


@cython.cfunc
@cython.inline
def _put_raw(p: cython.p_uchar, at: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = len(data)
    if cython.compiled:
        memcpy(p + at, PyBytes_AS_STRING(data), size)
    else:
        p[at : at + size] = data
    return at + size


@cython.cfunc
def _text(prefix: bytes, text: str) -> bytes:
    if cython.compiled:
        size: cython.Py_ssize_t = 0
        utf8: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(size))
        assert size and memchr(utf8, 0, size) is cython.NULL, f"not a name: {text!r}"
        front: cython.Py_ssize_t = len(prefix)
        out: bytes = PyBytes_FromStringAndSize(cython.NULL, front + size)
        p: cython.p_char = PyBytes_AS_STRING(out)
        memcpy(p, PyBytes_AS_STRING(prefix), front)
        memcpy(p + front, utf8, size)
        return out
    else:
        raw: bytes = text.encode()
        assert raw and b"\0" not in raw, f"not a name: {text!r}"
        return prefix + raw


@cython.cfunc
def _name(prefix: bytes, key: bytes) -> str:
    assert key.startswith(prefix), key
    return key[len(prefix) :].decode()


@cython.cfunc
def _integers(
    prefix: bytes,
    a: cython.ulonglong,
    a_width: cython.Py_ssize_t,
    b: cython.ulonglong,
    b_width: cython.Py_ssize_t,
    c: cython.ulonglong,
    c_width: cython.Py_ssize_t,
) -> bytes:
    """The prefix and up to three integers; width 0 leaves one out."""
    size: cython.Py_ssize_t = len(prefix) + a_width + b_width + c_width
    if cython.compiled:
        out: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(out))
    else:
        p = bytearray(size)
    at: cython.Py_ssize_t = _put_raw(p, 0, prefix)
    at = _put_integer(p, at, a, a_width)
    at = _put_integer(p, at, b, b_width)
    _put_integer(p, at, c, c_width)
    return out if cython.compiled else bytes(p)


@cython.cfunc
@cython.inline
def _pointer(prefix: bytes, key: bytes, size: cython.Py_ssize_t) -> cython.p_uchar:
    """The bytes of a key that must have this prefix and as many bytes behind it."""
    assert key.startswith(prefix) and len(key) == len(prefix) + size, key
    return cython.cast(cython.p_uchar, PyBytes_AS_STRING(key)) if cython.compiled else key


def prefix_end(prefix: bytes) -> bytes:
    """The first key behind all keys that start with `prefix`."""
    stripped: bytes = prefix.rstrip(b"\xff")
    assert stripped, "no key is behind this prefix"
    last: cython.Py_ssize_t = len(stripped) - 1
    return stripped[:last] + bytes((stripped[last] + 1,))


def job(job_id: str) -> bytes:
    """Row of the job's head."""
    return _text(JOB, job_id)


def body(job_id: str) -> bytes:
    """Row of what the job was enqueued with."""
    return _text(BODY, job_id)


def data(job_id: str) -> bytes:
    """Row of what the job's worker sent: checkpoint, progress, result."""
    return _text(DATA, job_id)


def options(job_id: str) -> bytes:
    """Row of what only some jobs have: group, expiry, hold, batch, chain, dependencies."""
    return _text(OPTIONS, job_id)


def log(job_id: str) -> bytes:
    """Row of what the job's blocks of log lines add up to."""
    return _text(LOG, job_id)


def log_blocks(job_id: str) -> bytes:
    """Prefix of the job's blocks of log lines."""
    return _text(LOG_BLOCK, job_id) + b"\0"


def log_block(job_id: str, first_seq: cython.ulonglong) -> bytes:
    """Row of the block of log lines that starts with this seq."""
    return _integers(log_blocks(job_id), first_seq, 8, 0, 0, 0, 0)


def errors(job_id: str) -> bytes:
    """Prefix of the job's error records."""
    return _text(ERROR, job_id) + b"\0"


def error(job_id: str, number: cython.ulonglong) -> bytes:
    """Row of one error record; slots rise in the order the errors happened."""
    return _integers(errors(job_id), number, 4, 0, 0, 0, 0)


def parse_job(key: bytes) -> str:
    """The job id in the key of a head."""
    return _name(JOB, key)


def parse_error(key: bytes) -> tuple[str, int]:
    """(job id, slot)"""
    end: cython.Py_ssize_t = len(key) - 5
    assert key.startswith(ERROR) and end > len(ERROR) and key[end : end + 1] == b"\0", key
    p: cython.p_uchar = _pointer(b"", key, len(key))
    return key[len(ERROR) : end].decode(), _get_integer(p, end + 1, 4)


def pending(number: cython.ulonglong, priority: cython.ulonglong, seq: cython.ulonglong) -> bytes:
    """Row of a ready job in queue `number`; its value is the job id."""
    return _integers(PENDING, number, 4, priority, 1, seq, 8)


def parse_pending(key: bytes) -> tuple[int, int, int]:
    """(queue number, priority, seq)"""
    p: cython.p_uchar = _pointer(PENDING, key, 13)
    return _get_integer(p, 2, 4), _get_integer(p, 6, 1), _get_integer(p, 7, 8)


def placed(family: bytes, number: cython.ulonglong, seq: cython.ulonglong) -> bytes:
    """Row of an active, scheduled, retrying, held or expiring job; its value is a `due`."""
    assert len(family) == 2
    return _integers(family, number, 4, seq, 8, 0, 0)


def parse_placed(key: bytes) -> tuple[int, int]:
    """(queue number, seq) of a row of any of these families."""
    assert len(key) == 14 and key[1:2] == b"|", key
    p: cython.p_uchar = _pointer(key[:2], key, 12)
    return _get_integer(p, 2, 4), _get_integer(p, 6, 8)


def due(due_ns: cython.ulonglong, fencing: cython.ulonglong, job_id: str) -> bytes:
    """Value of a placed row; times behind the year 2262 are cut by the caller."""
    return _integers(b"", due_ns, 8, fencing, 8, 0, 0) + _text(b"", job_id)


def parse_due(value: bytes) -> tuple[int, int, str]:
    """(due_ns, fencing, job id)"""
    assert len(value) > 16, value
    p: cython.p_uchar = _pointer(b"", value, len(value))
    return _get_integer(p, 0, 8), _get_integer(p, 8, 8), parse_id(value[16:])


def grouped(value: bytes, priority: cython.ulonglong, group: str) -> bytes:
    """Value of the index row of a job that stands in a group."""
    return value + bytes((0, priority)) + group.encode()


def id_alone(job_id: str) -> bytes:
    """Value of a pending, blocked or finished row."""
    return _text(b"", job_id)


def parse_id(value: bytes) -> str:
    """The job id in the value of a pending, blocked or finished row."""
    return value.partition(b"\0")[0].decode()


def parse_group(value: bytes, at: cython.Py_ssize_t) -> tuple[int, str]:
    """(priority, group key) in the value of an index row, in which the job id starts at `at`; the
    key is empty when the job stands in no group."""
    end: cython.Py_ssize_t = value.find(b"\0", at)
    if end < 0:
        return 0, ""
    return value[end + 1], value[end + 2 :].decode()


def finished(
    number: cython.ulonglong,
    state: cython.ulonglong,
    finished_ns: cython.ulonglong,
    seq: cython.ulonglong,
) -> bytes:
    """Row of a job that has ended, by queue and state in order of time; its value is the id."""
    assert state < 256
    return _integers(FINISHED, number << 8 | state, 5, finished_ns, 8, seq, 8)


def parse_finished(key: bytes) -> tuple[int, int, int, int]:
    """(queue number, state, finished_ns, seq)"""
    p: cython.p_uchar = _pointer(FINISHED, key, 21)
    number, state = _get_integer(p, 2, 4), _get_integer(p, 6, 1)
    return number, state, _get_integer(p, 7, 8), _get_integer(p, 15, 8)


def of_queue(family: bytes, number: cython.ulonglong) -> bytes:
    """Prefix of the rows of one queue in a family of index rows."""
    return _integers(family, number, 4, 0, 0, 0, 0)


def parse_number(key: bytes) -> int:
    """The queue number in the key of an index row of any family."""
    p: cython.p_uchar = _pointer(key[:2], key, len(key) - 2)
    return _get_integer(p, 2, 4)


def parse_seq(key: bytes) -> int:
    """The seq in the key of an index row of any family."""
    p: cython.p_uchar = _pointer(key[:2], key, len(key) - 2)
    return _get_integer(p, len(key) - 8, 8)


def finished_in(number: cython.ulonglong, state: cython.ulonglong) -> bytes:
    """Prefix of the rows of the jobs of a queue that have ended in a state."""
    return _integers(FINISHED, number << 8 | state, 5, 0, 0, 0, 0)


def operation(operation_id: str) -> bytes:
    """Row of a task on many jobs."""
    return _text(OPERATION, operation_id)


def parse_operation(key: bytes) -> str:
    """The task's id."""
    return _name(OPERATION, key)


def operation_chunk(operation_id: str, number: cython.ulonglong) -> bytes:
    """Row of some of the job ids of a task."""
    return _integers(_text(OPERATION_CHUNK, operation_id) + b"\0", number, 4, 0, 0, 0, 0)


def links(family: bytes, owner: str) -> bytes:
    """Prefix of the links of one owner: dependents or children of a job, members of a batch."""
    return _text(family, owner) + b"\0"


def link(family: bytes, owner: str, member: str) -> bytes:
    """Row of one link; its value is empty."""
    return _text(links(family, owner), member)


def parse_link(family: bytes, key: bytes) -> tuple[str, str]:
    """(owner, member)"""
    assert key.startswith(family), key
    owner, _, member = key[len(family) :].partition(b"\0")
    return owner.decode(), member.decode()


def pending_dependents(job_id: str) -> bytes:
    """Row of a job that has ended while some of its dependents have not heard of it yet."""
    return _text(PENDING_DEPENDENTS, job_id)


def parse_pending_dependents(key: bytes) -> str:
    """The job's id."""
    return _name(PENDING_DEPENDENTS, key)


def batch(batch_id: str) -> bytes:
    """Row of a batch."""
    return _text(BATCH, batch_id)


def parse_batch(key: bytes) -> str:
    """The batch's id."""
    return _name(BATCH, key)


def batch_finished(finished_ns: cython.ulonglong, batch_id: str) -> bytes:
    """Row of a batch that has finished, in order of time."""
    return _integers(BATCH_FINISHED, finished_ns, 8, 0, 0, 0, 0) + _text(b"", batch_id)


def parse_batch_finished(key: bytes) -> tuple[int, str]:
    """(finished_ns, batch id)"""
    p: cython.p_uchar = _pointer(b"", key, len(key))
    return _get_integer(p, 3, 8), key[11:].decode()


def idempotency(number: cython.ulonglong) -> bytes:
    """Row of the outcome of a request that carried an idempotency key, in order of time."""
    return _integers(IDEMPOTENCY, number, 8, 0, 0, 0, 0)


def parse_idempotency(key: bytes) -> int:
    """The outcome's number."""
    p: cython.p_uchar = _pointer(IDEMPOTENCY, key, 8)
    return _get_integer(p, 3, 8)


def queue(name: str) -> bytes:
    """Row of a queue."""
    return _text(QUEUE, name)


def parse_queue(key: bytes) -> str:
    """The queue's name."""
    return _name(QUEUE, key)


def group(number: cython.ulonglong, group_number: cython.ulonglong) -> bytes:
    """Row of a group of jobs in queue `number`."""
    return _integers(GROUP, number, 4, group_number, 8, 0, 0)


def parse_group_key(key: bytes) -> tuple[int, int]:
    """(queue number, group number)"""
    p: cython.p_uchar = _pointer(GROUP, key, 12)
    return _get_integer(p, 2, 4), _get_integer(p, 6, 8)


def grant(number: cython.ulonglong, stamp_ns: cython.ulonglong) -> bytes:
    """Row of what queue `number`, which has a rate limit, handed out at one stamp."""
    return _integers(GRANT, number, 4, stamp_ns, 8, 0, 0)


def parse_grant(key: bytes) -> tuple[int, int]:
    """(queue number, stamp_ns)"""
    p: cython.p_uchar = _pointer(GRANT, key, 12)
    return _get_integer(p, 2, 4), _get_integer(p, 6, 8)


def unique(number: cython.ulonglong, key_hash: bytes) -> bytes:
    """Row of a unique lock in queue `number`; the value has the full key to compare with."""
    assert len(key_hash) == HASH_SIZE
    return _integers(UNIQUE, number, 4, 0, 0, 0, 0) + key_hash


def unique_of(number: cython.ulonglong) -> bytes:
    """Prefix of the unique locks in queue `number`."""
    return _integers(UNIQUE, number, 4, 0, 0, 0, 0)


def parse_unique(key: bytes) -> tuple[int, bytes]:
    """(queue number, key hash)"""
    p: cython.p_uchar = _pointer(UNIQUE, key, 4 + HASH_SIZE)
    return _get_integer(p, 2, 4), key[6:]


def worker(worker_id: str) -> bytes:
    """Row of a worker. Nothing follows the id, so it may hold any character, NUL too."""
    assert worker_id
    return WORKER + worker_id.encode()


def parse_worker(key: bytes) -> str:
    """The worker's id."""
    return _name(WORKER, key)


def schedule(schedule_id: str) -> bytes:
    """Row of a schedule."""
    return _text(SCHEDULE, schedule_id)


def parse_schedule(key: bytes) -> str:
    """The schedule's id."""
    return _name(SCHEDULE, key)


def events(first_seq: cython.ulonglong) -> bytes:
    """Row of the block of events that starts with this seq."""
    return _integers(EVENTS, first_seq, 8, 0, 0, 0, 0)


def parse_events(key: bytes) -> int:
    """The block's first seq."""
    p: cython.p_uchar = _pointer(EVENTS, key, 8)
    return _get_integer(p, 3, 8)


def outbox(index: cython.ulonglong) -> bytes:
    """Row of what the flush that covers the log up to this index has changed."""
    return _integers(OUTBOX, index, 8, 0, 0, 0, 0)


def parse_outbox(key: bytes) -> int:
    """The flush's index."""
    p: cython.p_uchar = _pointer(OUTBOX, key, 8)
    return _get_integer(p, 2, 8)
