"""Ops with unusual texts in every field, encoded without the checks of the encoder.

`OddOps` chooses by the bytes that a property test or a fuzz target gives it. Texts are empty, as
long as a limit and longer, have NUL and control characters, or are the name of something that
exists. JSON has escapes of NUL and of lone surrogates, which are valid in a payload.
"""

from typing import Any

from corvo import ops, records
from corvo._fast.codec.layouts import encode_fields, encode_frame
from corvo.model import ACTIONS
from corvo.ops import Op
from corvo.records import Field, Record
from lib.consistency import check_machine
from lib.fsm_driver import Driver

# The same bytes without a check of names.
UNCHECKED = str.maketrans("noN", "ssS")
BUILT = [op for op in ops.OPS.values() if op.built and op is not ops.STAMP]
ODD = [
    "",
    "\0",
    "a\0b",
    "\0q",
    "q\0",
    "\x01\n\x1b\x7f\x85",
    "\u2028\ufeff\ufffd\U0010ffff",
    'a"b\\c',
    "..",
    "a/b",
    "e" * 128,
    "é" * 64,
    "e" * 129,
    "w" * 256,
    "k" * 500,
    "k" * 512,
    "k" * 1024,
    "m" * 4096,
]
STRINGS = [b'""', b'"boom"', b'"\\u0000"', b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\u001b\x7f"']
JSON = [b"", b"{}", b"null", b'{"a":"\\u0000"}', b'{"\\u0000":1,"\\ud800":[1e400]}', *STRINGS]
TAGS = [b"", b'{"a":"b"}', b'{"\\u0000":"\\u0000"}', b'{"a":"\\ud800","a":"\\u001b"}']
# Fields with an id that the server makes: it is new, or it cannot be a name.
MAKERS = (ops.ENQUEUE.fields, ops.RUN_SCHEDULE.fields, records.NEW_BATCH, ops.BULK_ACTION.fields)
MAKERS += (ops.CLEAR_QUEUE.fields, ops.DELETE_QUEUE.fields, ops.BULK_UNDO.fields)
NOT_NAMES = ["", "\0", "a\0b", "e" * 129, "é" * 65]
# Records inside ops, by the meaning of the field up to a semicolon.
NESTED: dict[str, Record] = {
    "record NEW_JOB_OPTIONS": records.NEW_JOB_OPTIONS,
    "Enqueue payloads": ops.ENQUEUE.fields,
    "Enqueue payload without id": ops.ENQUEUE.fields,
    "record NEW_BATCH": records.NEW_BATCH,
    "record STEP": records.STEP,
    "record BEAT": records.BEAT,
    "Ack payloads": ops.ACK.fields,
    "record ACTION": records.ACTION,
    "record RUN": records.RUN,
    "record LINE": records.LINE,
    "record CHAIN": records.CHAIN,
    "record FOLLOWER": records.FOLLOWER,
}


class OddOps:
    """Ops chosen by bytes; after the last byte every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._new = 0
        self._names = ["q", "w1"]

    @property
    def more(self) -> bool:
        """Whether there are bytes left."""
        return self._at < len(self._data)

    def pick(self, choices: list[Any]) -> Any:
        """One of the choices."""
        byte = self._data[self._at] if self.more else 0
        self._at += 1
        return choices[byte % len(choices)]

    def step(self) -> tuple[int, bytes]:
        """Number and payload of an op."""
        op: Op = self.pick(BUILT)
        if op is ops.IDEMPOTENT:
            inner = self.pick([op for op in BUILT if op.takes_key])
            payload = self.record(inner.fields)
            values = (self._text().encode(), b"f", 10**12, 100, inner.number, payload)
            return op.number, encode_fields(op.layout, values)
        return op.number, self.record(op.fields)

    def record(self, fields: Record) -> bytes:
        """An encoded record with values for all fields."""
        layout = records.layout(fields).translate(UNCHECKED)
        values = {field.name: self._value(field, fields) for field in fields}
        if not values.get("hold", True):  # the door gives the others only with this one
            values |= {"hold_reason": "", "hold_timeout_ns": 0, "hold_action": 0}
        return encode_fields(layout, tuple(values.values()))

    def _text(self) -> str:
        names = self._names
        return self.pick(self.pick([names, names, names, ODD]))  # type: ignore[no-any-return]

    def _new_id(self) -> str:
        """An id that nothing has yet, or a text that is not a name."""
        if self.pick([False] * 7 + [True]):
            return self.pick(NOT_NAMES)  # type: ignore[no-any-return]
        self._new += 1
        self._names.append(f"j{self._new}")
        return self._names[-1]

    def _value(self, field: Field, record: Record) -> Any:
        if field.kind in "sno":
            if record in MAKERS and field.name in ("job_id", "batch_id", "operation_id"):
                return self._new_id()
            return self._text()
        if field.kind in "SN":
            return [self._text() for _ in range(self.pick([1, 0, 2]))]
        if field.kind == "b":
            return self._bytes(field)
        if field.kind == "B":
            return self._list(field)
        if field.kind == "f":
            return self.pick([False, True])
        if field.kind == "U":
            return [0, 0, 0] if field.name == "default_ns" else []
        return self._number(field, record)

    def _number(self, field: Field, record: Record) -> int:
        if field.name == "action":
            return self.pick(list(range(len(ACTIONS))))  # type: ignore[no-any-return]
        if field.name in ("max_retries", "count", "limit"):
            return 2
        if field.name == "unique_period_ns":
            return 10**15  # a lock that expires leaves its row to CleanUnique, which is left out
        if field.name in ("lease_ns", "reply_size_max", "next_ns"):
            return 10**10
        if record is records.RUN or field.kind in "qt" or field.name == "revision":
            return 0
        return self.pick([0, 1])  # type: ignore[no-any-return]

    def _bytes(self, field: Field) -> bytes:
        if field.meaning.partition(";")[0] in NESTED:
            optional = field.meaning not in ("Enqueue payload without id", "record ACTION")
            if optional and self.pick([True, True, False]):
                return b""
            if field.meaning == "Enqueue payload without id":
                return self._template()
            return self.record(NESTED[field.meaning.partition(";")[0]])
        if field.name in ("unique_key", "key"):
            return self._text().encode()
        if field.name == "tags":
            return self.pick(TAGS)  # type: ignore[no-any-return]
        if field.meaning == "JSON string text":
            return self.pick(STRINGS)  # type: ignore[no-any-return]
        return self.pick(JSON) or b"{}"

    def _template(self) -> bytes:
        """The Enqueue of a schedule, which has no id and no options."""
        layout = ops.ENQUEUE.layout.translate(UNCHECKED)
        values = [self._value(field, ops.ENQUEUE.fields) for field in ops.ENQUEUE.fields]
        values[0], values[ops.ENQUEUE.position("options")] = "", b""
        return encode_fields(layout, tuple(values))

    def _list(self, field: Field) -> list[bytes]:
        if field.meaning == "keys of their rows":
            return []
        follower = NESTED.get(field.meaning)
        assert follower is not None, f"no values for {field.name} ({field.meaning})"
        return [self.record(follower) for _ in range(self.pick([1, 0, 2]))]


def entry(stamp_ns: int, seed: int, steps: list[tuple[int, bytes]]) -> bytes:
    """A log entry of encoded ops."""
    stamp = encode_fields(ops.STAMP.layout, (stamp_ns, seed))
    return encode_frame([(ops.STAMP.number, stamp), *steps])


def apply_odd_ops(data: bytes) -> tuple[Driver, int]:
    """Apply the ops that the bytes choose, with flushes and reloads in between; return the state
    machine and the number of refused ops."""
    driver = Driver()
    odd = OddOps(data)
    number = refused = 0
    while odd.more:
        number += 1
        frame = entry(driver.now_ns, number, [odd.step() for _ in range(odd.pick([1, 3]))])
        driver.machine.apply(driver.machine.applied_index + 1, 1, frame)
        driver.now_ns += odd.pick([0, 20_000_000_000])
        driver.tick()
        if number % 5 == 0:
            refused += driver.machine.refused_ops
            driver.restart()
    before = driver.machine.hash
    refused += driver.machine.refused_ops
    driver.restart()
    assert driver.machine.hash == before
    check_machine(driver.machine, driver.state_store)
    return driver, refused
