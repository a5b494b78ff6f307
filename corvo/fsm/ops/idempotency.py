"""Idempotency keys: a repeated request gets the outcome of the first one.

The op of such a request is inside an Idempotent op, which has the key, a fingerprint of the request
and the limits in the leader's configuration. An outcome is dropped when it is too old or when there
are too many. Each new one drops at most two old ones, so a lowered limit is reached gradually. An
outcome is a kind in one byte and the fields of the result.
"""

from hashlib import blake2b
from json import dumps, loads
from typing import Any, Final

from corvo import errors
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import decode_fields, encode_fields
from corvo.errors import CorvoError, IdempotencyMismatch
from corvo.fsm.state.state import State
from corvo.model import Acked, BulkOperation, Enqueued, EnqueuedBatch, Failed, Logged, Schedule
from corvo.storage.records import bulk as bulk_records
from corvo.storage.records import jobs as job_records

# Kinds of outcomes, by number (the number is stored).
_NOTHING: Final = 0
_NUMBER: Final = 1
_TEXT: Final = 2
_ENQUEUED: Final = 3
_ENQUEUED_BATCH: Final = 4
_ACKED: Final = 5
_FAILED: Final = 6
_SCHEDULE: Final = 7
_ERROR: Final = 8
_OPERATION: Final = 9
_LIST: Final = 10
_LOGGED: Final = 11

_LAYOUTS: Final = ("", "i", "s", "sufb", "PUUBs", "uUB", "uuu", "sb", "ssb", "sb", "B", "uu")
_DROPPED_MAX: Final = 2
_ERROR_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CorvoError)
}


def digest_of(key: bytes) -> int:
    """Return the digest of a key, by which the index in memory finds it."""
    return int.from_bytes(blake2b(key, digest_size=job_records.DIGEST_SIZE).digest(), "big")


def find(state: State, key: bytes, fingerprint: bytes, keep_ns: int) -> tuple[object] | None:
    """Return the outcome of an earlier request with this key, or an IdempotencyMismatch if that
    request was a different one. None if there was none or it is too old."""
    number = state.idempotency_records.get(digest_of(key))
    if number == 0:
        return None
    row = state.buffer.rows.get(keys.idempotency(number))
    assert row is not None, f"outcome {number} has no row"
    stamp_ns, stored_key, stored_fingerprint, outcome = job_records.decode_idempotency(row)
    if stored_key != key or stamp_ns + keep_ns <= state.stamp_ns:
        return None
    if stored_fingerprint != fingerprint:
        return (IdempotencyMismatch("the Idempotency-Key was used with another request"),)
    return (decode_outcome(outcome),)


def keep(
    state: State, key: bytes, fingerprint: bytes, result: object, keep_ns: int, count: int
) -> None:
    """Record the outcome of a request."""
    meta = state.meta
    for _ in range(_DROPPED_MAX):
        if not _drop_oldest(state, keep_ns, count):
            break
    digest = digest_of(key)
    outcome = encode_outcome(result)
    row = job_records.encode_idempotency(digest, state.stamp_ns, key, fingerprint, outcome)
    state.buffer.rows.put(keys.idempotency(meta.next_idempotency), row)
    state.idempotency_records.put(digest, meta.next_idempotency)
    meta.next_idempotency += 1


def _drop_oldest(state: State, keep_ns: int, count: int) -> bool:
    """Drop the oldest outcome if it is too old or if there are too many to add one."""
    meta = state.meta
    if meta.first_idempotency == meta.next_idempotency:
        return False
    too_many = meta.next_idempotency - meta.first_idempotency >= count
    if not too_many and state.oldest_idempotency_ns + keep_ns > state.stamp_ns:
        return False
    key = keys.idempotency(meta.first_idempotency)
    row = state.buffer.rows.get(key)
    assert row is not None, f"outcome {meta.first_idempotency} has no row"
    if not too_many:
        state.oldest_idempotency_ns, _, _, _ = job_records.decode_idempotency(row)
        if state.oldest_idempotency_ns + keep_ns > state.stamp_ns:
            return False
    state.idempotency_records.remove(job_records.idempotency_digest(row), meta.first_idempotency)
    state.buffer.rows.put(key, None)
    meta.first_idempotency += 1
    return True


def _outcome(kind: int, values: tuple[Any, ...]) -> bytes:
    return bytes((kind,)) + encode_fields(_LAYOUTS[kind], values)


def encode_outcome(result: object) -> bytes:
    """Encode a result."""
    if result is None:
        return _outcome(_NOTHING, ())
    if isinstance(result, CorvoError):
        fields = dumps(result.fields, sort_keys=True).encode()
        return _outcome(_ERROR, (type(result).__name__, result.message, fields))
    if isinstance(result, Enqueued):
        values = (result.job_id, result.state, result.duplicate, result.result)
        return _outcome(_ENQUEUED, values)
    if isinstance(result, EnqueuedBatch):
        ids = [job.job_id for job in result.jobs]
        states = [job.state for job in result.jobs]
        duplicates = [int(job.duplicate) for job in result.jobs]
        results = [job.result for job in result.jobs]
        return _outcome(_ENQUEUED_BATCH, (ids, states, duplicates, results, result.batch_id))
    if isinstance(result, Acked):
        positions = [op_position for op_position, _ in result.refused]
        refusals = [encode_outcome(error) for _, error in result.refused]
        return _outcome(_ACKED, (result.count, positions, refusals))
    if isinstance(result, Failed):
        return _outcome(_FAILED, (result.state, result.next_attempt_ns, result.attempts_remaining))
    if isinstance(result, Schedule):
        return _outcome(_SCHEDULE, (result.id, job_records.encode_schedule(result)))
    if isinstance(result, BulkOperation):
        return _outcome(_OPERATION, (result.id, bulk_records.encode_operation(result)))
    if isinstance(result, list):
        return _outcome(_LIST, ([encode_outcome(item) for item in result],))
    if isinstance(result, Logged):
        return _outcome(_LOGGED, (result.seq, result.dropped))
    if isinstance(result, str):
        return _outcome(_TEXT, (result,))
    assert isinstance(result, int), f"cannot encode the outcome {result!r}"
    return _outcome(_NUMBER, (result,))


def decode_outcome(data: bytes) -> object:
    """Decode a result, equal to the encoded one."""
    kind = data[0]
    values = decode_fields(_LAYOUTS[kind], data[1:])
    if kind == _NOTHING:
        return None
    if kind == _ERROR:
        name, message, fields = values
        return _ERROR_KINDS[name](message, **loads(fields))
    if kind == _ENQUEUED:
        return Enqueued(*values)
    if kind == _ENQUEUED_BATCH:
        ids, states, duplicates, results, batch_id = values
        rows = zip(ids, states, duplicates, results, strict=True)
        return EnqueuedBatch([Enqueued(i, s, d > 0, r) for i, s, d, r in rows], batch_id)
    if kind == _ACKED:
        acked = Acked()
        acked.count, positions, refusals = values
        for op_position, refusal in zip(positions, refusals, strict=True):
            error = decode_outcome(refusal)
            assert isinstance(error, CorvoError)
            acked.refused.append((op_position, error))
        return acked
    if kind == _FAILED:
        return Failed(*values)
    if kind == _LOGGED:
        return Logged(*values)
    if kind == _SCHEDULE:
        return job_records.decode_schedule(*values)
    if kind == _OPERATION:
        return bulk_records.decode_operation(*values)
    (value,) = values
    return [decode_outcome(item) for item in value] if kind == _LIST else value
