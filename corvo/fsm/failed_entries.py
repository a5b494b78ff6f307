"""Entries that cannot be applied: the error that names one, and the way to continue without it.

A node that cannot apply an entry stops, and stops again at each start. An operator can set its
index: then the entry takes no effect, on every node.
"""

from json import dumps

from corvo import ops
from corvo._fast.codec.layouts import CodecError, decode_fields, decode_frame
from corvo.errors import EntryFailed, ValidationError
from corvo.events import ENTRY_SKIPPED
from corvo.fsm.state.state import State


def failure(state: State, index: int, data: bytes, error: Exception) -> EntryFailed:
    """Return the error of an entry whose application raised this one."""
    try:
        number = decode_frame(data)[state.op_position][0]
        place = f"op {state.op_position} ({ops.OPS[number].name}): "
    except (CodecError, LookupError):
        place = ""
    reason = f"{place}{type(error).__name__}: {error}"
    return EntryFailed(f"entry {index} cannot be applied: {reason}", index=index)


def skip(state: State, index: int, term: int, data: bytes) -> list[object]:
    """Record the event that replaces the effect of an entry; each of its ops is refused. The event
    is part of the rolling hash, so a node that has applied the entry differs."""
    stamp_ns: int = 0
    seed: int = 0
    names: list[str] = []
    try:
        frame = decode_frame(data)
        stamp_ns, seed = decode_fields(ops.STAMP.layout, frame[0][1])
        names = [ops.OPS[number].name for number, _ in frame[1:]]
    except (CodecError, LookupError):
        names = []
    state.begin(term, stamp_ns, seed)
    state.emit_queue("", ENTRY_SKIPPED, dumps({"index": index, "ops": names}).encode())
    state.end()
    refusal = ValidationError(f"entry {index} was skipped by an operator")
    return [refusal for _ in names]
