"""The JSON edge: request bodies as msgspec Structs, decoded strictly and with clear errors.

A member that holds any JSON is kept as `Raw`, the bytes received. Unknown members are refused with
the nearest known name; members of features that this version does not have are refused by name.

This module is never compiled: Structs need their annotations as Python objects.
"""

import contextlib
import functools
import re
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from corvo import limits
from corvo.engine import validate
from corvo.engine.commands.inputs import (
    NOTHING,
    AckBody,
    AckItem,
    BatchBody,
    Beat,
    ChainBody,
    EnqueueBatchBody,
    EnqueueBody,
    FollowerBody,
    HoldBody,
    Number,
    ReleaseBody,
    Text,
)
from corvo.engine.validate import Duration
from corvo.errors import ParseError, ValidationError
from corvo.net.api.halves import Halves, find_halves
from corvo.platform.echoes import hint, named, shown


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _JsonText(_Body):
    """A JSON value that came as a text."""

    value: Raw = NOTHING


class _Tags(_Body):
    """Tags that came as a text."""

    tags: dict[str, Raw] = {}


class AckBatchBody(_Body):
    """POST /ack/batch."""

    acks: list[AckItem] | None = None


class HeartbeatBody(_Body):
    """POST /heartbeat."""

    jobs: dict[str, Beat] | None = None


class _RawBeats(msgspec.Struct):
    """A HeartbeatBody whose items are not decoded."""

    jobs: dict[str, Raw] = {}


class _CountedJobs(msgspec.Struct):
    """POST /enqueue/batch, for the number of its jobs."""

    jobs: list[Raw] = []


class ScheduleBody(_Body):
    """POST /schedules and PUT /schedules/{id}: what is absent stays as it is, null is the
    default."""

    name: Text | UnsetType = UNSET
    cron: Text | UnsetType = UNSET
    timezone: Text | UnsetType = UNSET
    enabled: bool | UnsetType | None = UNSET
    overlap: Text | UnsetType = UNSET
    catch_up: Text | UnsetType = UNSET
    catch_up_limit: int | UnsetType | None = UNSET
    # The job, as in an enqueue.
    queue: Text | UnsetType = UNSET
    payload: Raw = NOTHING
    priority: str | int | UnsetType | None = UNSET
    max_retries: int | UnsetType | None = UNSET
    retry_backoff: Text | UnsetType = UNSET
    retry_base_delay: Duration | UnsetType = UNSET
    retry_max_delay: Duration | UnsetType = UNSET
    retry_jitter: Number | UnsetType | None = UNSET
    tags: dict[str, Raw] | UnsetType | None = UNSET
    unique_key: Text | UnsetType = UNSET
    unique_until: Text | UnsetType = UNSET
    unique_period: Duration | UnsetType = UNSET


class JobIdsBody(_Body):
    """POST /jobs/bulk-get."""

    job_ids: list[str] | None = None


class CancelBody(_Body):
    """POST /jobs/{id}/cancel."""

    force: bool | None = None


class ApproveBody(_Body):
    """POST /jobs/{id}/approve."""

    approved_by: Text = None
    note: Text = None


class RejectBody(_Body):
    """POST /jobs/{id}/reject."""

    rejected_by: Text = None
    reason: Text = None
    revise: bool | None = None
    feedback: Raw = NOTHING


class MoveBody(_Body):
    """POST /jobs/{id}/move."""

    queue: Text = None
    reset_attempts: bool | None = None
    keep_priority: bool | None = None


class PriorityBody(_Body):
    """POST /jobs/{id}/priority."""

    priority: str | int | None = None


class UndoBody(_Body, rename={"async_": "async"}):
    """POST /bulk/{id}/undo."""

    async_: bool | None = None


class BulkBody(_Body, rename={"async_": "async"}):
    """POST /jobs/bulk."""

    action: Text = None
    job_ids: list[str] | None = None
    filter: dict[str, Raw] | None = None
    all: bool | None = None
    dry_run: bool | None = None
    async_: bool | None = None
    move_to_queue: Text = None
    reset_attempts: bool | None = None
    keep_priority: bool | None = None
    priority: str | int | None = None
    force: bool | None = None
    reason: Text = None
    by: Text = None
    note: Text = None
    feedback: Raw = NOTHING
    revise: bool | None = None
    timeout: Duration = None
    timeout_action: Text = None


class FacetsBody(_Body):
    """POST /jobs/facets."""

    filter: dict[str, Raw] | None = None
    by: list[str] | None = None


class RetentionBody(_Body):
    """POST /queues/{name}/retention: what is absent stays as it is, null is the default of the
    server."""

    completed: Duration | UnsetType = UNSET
    dead: Duration | UnsetType = UNSET
    cancelled: Duration | UnsetType = UNSET


class LineBody(_Body):
    """One line of POST /jobs/{id}/logs. The message stays a JSON string."""

    message: Raw = NOTHING
    level: Text = None
    at: Text = None


class LogsBody(_Body):
    """POST /jobs/{id}/logs."""

    lease_token: Text = None
    lines: list[LineBody] | None = None


class ReleaseLockBody(_Body):
    """POST /locks/release."""

    queue: Text = None
    unique_key: Text = None
    job_id: Text = None


class ConcurrencyBody(_Body):
    """POST /queues/{name}/concurrency."""

    max: int | None = None


class ThrottleBody(_Body):
    """POST /queues/{name}/throttle: the length of the window in one of two ways."""

    rate: int | None = None
    window_ms: int | None = None
    period: Duration = None


class GroupsBody(_Body):
    """POST /queues/{name}/groups; null removes the limit."""

    concurrency: int | UnsetType | None = UNSET


class AgingBody(_Body):
    """POST /queues/{name}/aging; null switches it off."""

    after: Duration | UnsetType = UNSET


class JoinBody(_Body):
    """POST /cluster/join: the joining node, and the proof that it knows the cluster secret."""

    node_id: str
    addr: str
    http_addr: str
    cluster_id: str
    proof: str


class MemberBody(_Body):
    """POST /cluster/remove, promote, transfer: which node."""

    node_id: Text = None


class ClockBody(_Body):
    """POST /test/clock: one of the three, or none to read the clock."""

    advance: Duration = None
    set: Text = None
    freeze: bool | None = None


# Members of features that are not part of this version, by the body they belong to.
_ACK_LATER = ("usage", "agent_status", "hold_reason", "trace")
_NOT_HERE: dict[type, tuple[str, ...]] = {
    EnqueueBody: (
        "agent",
        "routing",
    ),
    AckBody: _ACK_LATER,
    AckItem: _ACK_LATER,
    Beat: ("usage",),
    ReleaseBody: ("usage",),
    ApproveBody: ("max_iterations", "max_cost_usd"),
}

# Bodies inside others, by the name of their member.
_PARTS: dict[str, type[msgspec.Struct]] = {
    "hold": HoldBody,
    "chain": ChainBody,
    "chain_config": ChainBody,
    "batch": BatchBody,
    "steps": FollowerBody,
    "on_failure": FollowerBody,
    "on_exit": FollowerBody,
    "on_success": FollowerBody,
    "on_complete": FollowerBody,
    "on_death": FollowerBody,
}

_Scalar = str | int | float | bool | None
_SHALLOW = msgspec.json.Decoder(_Scalar | list[_Scalar] | dict[str, _Scalar])
_B = TypeVar("_B", bound=msgspec.Struct | dict[str, Raw])
_DECODERS: dict[type, Any] = {}
_OBJECTS_MANY = 4 * limits.ENQUEUE_BATCH_MAX
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?$", re.DOTALL)
_PATH_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_FIELDS_MAX = 8  # unknown members in the fields of one error
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_ELEMENTS = msgspec.json.Decoder(list[Raw])
_AT = re.compile(r"(.*) - at `\$\.?(.*)`$", re.DOTALL)
_INDEX = re.compile(r"\[(\d+)\]")
# The body is broken after the member that the decoder names, or repeats the list that holds it.
_NOT_READ_AGAIN = (msgspec.DecodeError, RecursionError, IndexError)


def decode(body: bytes, kind: type[_B]) -> _B:
    """Decode a request body. Raises ParseError (not JSON) or ValidationError (wrong members)."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = _new_decoder(kind)
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise ParseError(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        decoded: _B = decoder.decode(body)
        return decoded
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind, body) from None
    except msgspec.DecodeError as error:
        with_halves = _decode_halves(body, kind, decoder)
        if with_halves is not None:
            return with_halves
        raise ParseError(f"invalid JSON: {error}" if body else "the body is empty") from None
    except RecursionError:
        raise ParseError("invalid JSON: nested too deeply") from None


class _BatchDecoder:
    """The decoder of a batch. A list that is far too long is refused before its jobs are built, as
    each of them takes a hundred times the memory of its text."""

    def __init__(self) -> None:
        self._whole = msgspec.json.Decoder(EnqueueBatchBody)
        self._counted = msgspec.json.Decoder(_CountedJobs)

    def decode(self, body: bytes) -> EnqueueBatchBody:
        """See `msgspec.json.Decoder`."""
        if body.count(b"{") > _OBJECTS_MANY:
            with contextlib.suppress(msgspec.ValidationError):  # the whole decoder names the member
                jobs = len(self._counted.decode(body).jobs)
                if jobs > limits.ENQUEUE_BATCH_MAX:
                    validate.count(jobs, "jobs", limits.ENQUEUE_BATCH_MAX)
        return self._whole.decode(body)


def _new_decoder(kind: type) -> Any:
    return _BatchDecoder() if kind is EnqueueBatchBody else msgspec.json.Decoder(kind)


def decode_optional(body: bytes, kind: type[_B]) -> _B:
    """Like `decode`, but an empty body counts as `{}`."""
    return decode(body or b"{}", kind)


def decode_object(body: bytes) -> dict[str, Any]:
    """Decode a body without checking its members; an empty one counts as `{}`."""
    return plain_values(decode(body or b"{}", dict[str, Raw]))


def plain_values(members: dict[str, Raw]) -> dict[str, Any]:
    """Members that were kept as bytes, decoded: scalars, and lists and objects of them."""
    return {name: plain_value(raw, name) for name, raw in members.items()}


def plain_value(raw: Raw, field: str) -> Any:
    """A member that was kept as bytes, decoded. Deeper values are refused before they are built:
    they have no meaning here, and take far more time and memory than their text."""
    try:
        return _SHALLOW.decode(raw)
    except msgspec.ValidationError as error:
        wrong = "list or object inside another one"
        if "out of range" in str(error):
            wrong = "number that is out of range"
        raise ValidationError(f"{shown(field)} holds a {wrong}", field=field) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError(f"invalid JSON in {shown(field)}: {error}") from None


def _decode_halves(body: bytes, kind: type[_B], decoder: Any) -> _B | None:
    """Decode a body with halves of surrogate pairs, see `corvo.net.api.halves`; None if it has no
    surrogates."""
    halves = find_halves(body)
    if halves is None:
        return None
    try:
        decoded = decoder.decode(halves.body)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind, halves.body) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError(f"invalid JSON: {error}") from None
    restored: _B = _restore(decoded, halves)
    return restored


def _restore(value: Any, halves: Halves) -> Any:
    """A decoded value as it was meant. Kept bytes can hold halves, texts cannot."""
    if isinstance(value, Raw):
        data = bytes(value)
        restored = halves.restore(data)
        return value if restored is data else Raw(restored)
    if isinstance(value, str):
        return halves.restore_text(value)
    if isinstance(value, list):
        return [_restore(item, halves) for item in value]
    if isinstance(value, dict):
        return {_restore(key, halves): _restore(item, halves) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        for name, default in _defaults(type(value)):
            member = getattr(value, name)
            if member is not default:
                setattr(value, name, _restore(member, halves))
    return value


@functools.cache
def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """The members of a Struct, and what they are where the body does not have them."""
    return [(field.name, field.default) for field in msgspec.structs.fields(kind)]


def _explained(text: str, kind: type, body: bytes) -> ValidationError:
    """A decoder's message about a body, with the member first and a hint; and where it is."""
    unknown = _UNKNOWN.match(text)
    if unknown is None:
        at = _AT.match(text)
        if at is None:
            return ValidationError(text.replace("`", ""))
        path, place = _place(at.group(2), kind, body)
        message = f"{path}: {at.group(1)}".replace("`", "")
        name = path.rpartition(".")[2]
        return ValidationError(message, field=name.partition("[")[0], **place)
    name, at_path = unknown.group(1), unknown.group(2) or ""
    struct = _struct_at(kind, at_path)
    path, place = _place(at_path.lstrip("."), kind, body)
    where = f" (at {path})" if path else ""
    known = struct.__struct_encode_fields__
    try:
        names = unknown_members(body, at_path, struct)
    except _NOT_READ_AGAIN:
        names = []
    if len(names) > 1:
        later = dict.fromkeys(_NOT_HERE.get(struct, ()), "not part of this version")
        message = f"unknown fields {named(names, known, later)}{where}"
        return ValidationError(message, field=names[0], fields=names[:_FIELDS_MAX], **place)
    if name in _NOT_HERE.get(struct, ()):
        return ValidationError(f"{name} is not part of this version{where}", field=name, **place)
    near = hint(name, known)
    return ValidationError(f"unknown field {shown(name)}{where}{near}", field=name, **place)


def _place(path: str, kind: type, body: bytes) -> tuple[str, dict[str, Any]]:
    """A path in a body with the keys that the decoder leaves out, and the place of the part as
    fields of an error."""
    if kind is HeartbeatBody and path.startswith("jobs[...]"):
        job_id = _refused_beat(body)
        return path.replace("...", shown(job_id), 1), {"job_id": job_id} if job_id else {}
    index = _INDEX.search(path)
    return path, {} if index is None else {"index": int(index.group(1))}


def _refused_beat(body: bytes) -> str:
    """The job of the first heartbeat that cannot be decoded; empty if the body is broken after
    it."""
    try:
        beats = msgspec.json.decode(body, type=_RawBeats).jobs
    except (msgspec.DecodeError, RecursionError):
        return ""
    for job_id, beat in beats.items():
        try:
            msgspec.json.decode(beat, type=Beat)
        except msgspec.ValidationError:
            return job_id
    return ""


def unknown_members(body: bytes, path: str, struct: Any) -> list[str]:
    """The names of the unknown members of the first object at a path of a body that has any. Only
    the objects and lists on the path are decoded."""
    parts: list[bytes | Raw] = [body]
    for name, index in _PATH_STEP.findall(path):
        if index == "...":
            parts = [item for part in parts for item in _members(part).values()]
        elif index:
            parts = [_ELEMENTS.decode(part)[int(index)] for part in parts]
        else:
            parts = [item for part in parts if (item := _members(part).get(name)) is not None]
    known = struct.__struct_encode_fields__
    for part in parts:
        names = [name for name in _members(part) if name not in known]
        if names:
            return names
    return []


def _members(part: bytes | Raw) -> dict[str, Raw]:
    try:
        return _MEMBERS.decode(part)
    except msgspec.ValidationError:  # not an object
        return {}


def _struct_at(kind: type, path: str) -> Any:
    part = path.removesuffix("[...]").rpartition(".")[2]
    if part in _PARTS:
        return _PARTS[part]
    if path.startswith((".jobs", "[...]")) and kind is EnqueueBatchBody:
        return EnqueueBody
    if path and kind is AckBatchBody:
        return AckItem
    if path and kind is HeartbeatBody:
        return Beat
    if path and kind is LogsBody:
        return LineBody
    return kind


def json_text(text: str, field: str) -> Raw:
    """The JSON value that a text holds, without white space around it; an empty text is none."""
    data = text.strip(" \t\r\n").encode()
    if not data:
        return NOTHING
    try:
        value = decode(b'{"value":%b}' % data, _JsonText).value
    except (ParseError, ValidationError):
        value = NOTHING
    if bytes(value) != data:  # or the text closed the value and continued after it
        raise ValidationError(f"invalid {field}: it is not JSON", field=field)
    return value


def tags_of_text(text: str) -> dict[str, Raw] | None:
    """The tags that a text holds, none if it is empty."""
    raw = json_text(text, "tags_json")
    return decode(b'{"tags":%b}' % bytes(raw), _Tags).tags if bytes(raw) else None


def text_json(text: str) -> Raw:
    """A text as a JSON string, none if it is empty."""
    return Raw(msgspec.json.encode(text)) if text else NOTHING
