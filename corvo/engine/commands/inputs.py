"""Values that commands take, as documents: each protocol fills them in its own way.

The HTTP API decodes request bodies into them (`corvo.net.api.requests`), the worker service copies
messages. A member that may be any JSON is kept as `Raw`, the bytes received.

This module is never compiled: Structs need their annotations as Python objects.
"""

import json

import msgspec
from msgspec import Raw

from corvo import limits
from corvo.engine import validate
from corvo.engine.validate import Duration
from corvo.errors import ValidationError
from corvo.platform.echoes import shown

Text = str | None
Number = int | float
NOTHING = Raw(b"")


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    """A document whose unknown members are refused."""


class FollowerBody(_Body):
    """A job that follows: a step or handler of a chain, or a callback of a batch."""

    queue: Text = None
    payload: Raw = NOTHING


class ChainBody(_Body):
    """A chain of an enqueue."""

    steps: list[FollowerBody] | None = None
    on_failure: FollowerBody | None = None
    on_exit: FollowerBody | None = None


class BatchBody(_Body):
    """The batch that the jobs of an enqueue make."""

    callback_queue: Text = None
    callback_payload: Raw = NOTHING
    on_success: FollowerBody | None = None
    on_complete: FollowerBody | None = None
    on_death: FollowerBody | None = None


class HoldBody(_Body):
    """POST /jobs/{id}/hold, and `hold` of an enqueue."""

    reason: Text = None
    timeout: Duration = None
    timeout_action: Text = None


class JobBody(_Body):
    """Fields that every enqueue has."""

    queue: Text = None
    payload: Raw = NOTHING
    priority: str | int | None = None
    max_retries: int | None = None
    retry_backoff: Text = None
    retry_base_delay: Duration = None
    retry_max_delay: Duration = None
    retry_jitter: Number | None = None
    scheduled_at: Text = None
    delay: Duration = None
    tags: dict[str, Raw] | None = None
    checkpoint: Raw = NOTHING
    parent_id: Text = None
    unique_key: Text = None
    unique_until: Text = None
    unique_period: Duration = None
    wait: Duration = None


class EnqueueBody(JobBody):
    """POST /enqueue, and one item of POST /enqueue/batch; these fields are options that most jobs
    lack."""

    expire_after: Duration = None
    group_key: Text = None
    batch_id: Text = None
    chain: ChainBody | None = None
    chain_id: Text = None
    chain_step: int | None = None
    chain_config: ChainBody | None = None
    depends_on: list[str] | None = None
    on_dependency_failure: Text = None
    hold: HoldBody | None = None
    result_schema: Raw = NOTHING


class EnqueueBatchBody(_Body):
    """POST /enqueue/batch."""

    jobs: list[EnqueueBody] | None = None
    batch: BatchBody | None = None
    batch_id: Text = None


class FetchBody(_Body):
    """POST /fetch and POST /fetch/batch."""

    queues: list[str] | None = None
    worker_id: Text = None
    hostname: Text = None
    timeout: Duration = None
    lease_duration: Duration = None
    count: int | None = None


class AckBody(_Body):
    """POST /ack/{job_id}."""

    lease_token: Text = None
    result: Raw = NOTHING
    checkpoint: Raw = NOTHING
    step_status: Text = None
    exit_reason: Text = None


class AckItem(AckBody):
    """One item of POST /ack/batch."""

    job_id: Text = None


class FailBody(_Body):
    """POST /fail/{job_id}. The texts stay JSON strings, so that any escape survives."""

    lease_token: Text = None
    error: Raw = NOTHING
    backtrace: Raw = NOTHING
    retry: bool | None = None
    retry_after: Duration = None
    provider_error: bool | None = None


class Beat(_Body):
    """One job of POST /heartbeat."""

    lease_token: Text = None
    progress: Raw = NOTHING
    checkpoint: Raw = NOTHING
    stream_delta: Text = None


class ReleaseBody(_Body):
    """POST /release/{job_id}."""

    lease_token: Text = None
    delay: Duration = None
    checkpoint: Raw = NOTHING


def json_value(raw: Raw) -> bytes:
    """The bytes of an optional JSON value; absent and null are empty."""
    value = bytes(raw)
    return b"" if value == b"null" else value


def json_string(raw: Raw, field: str) -> bytes:
    """The bytes of an optional JSON string, quotes included."""
    value = bytes(raw)
    if not value or value == b"null":
        return b""
    if value[:1] != b'"':
        raise ValidationError(f"{field} must be a string", field=field)
    return value


def bounded_text(raw: Raw, field: str, size_max: int) -> bytes:
    """The bytes of an optional JSON string whose text has a bounded size."""
    value = json_string(raw, field)
    if len(value) - 2 <= size_max:  # decoding never makes a text longer
        return value
    validate.json_size(value, field, size_max, text_size(value))
    return shortened(value)


def text_size(value: bytes) -> int:
    """The size in UTF-8 of the text of a JSON string. Half of a surrogate pair counts 3 bytes."""
    if b"\\" not in value:
        return len(value) - 2
    return len(json.loads(value).encode(errors="surrogatepass"))


def shortened(value: bytes) -> bytes:
    """A JSON string of the same text with as few escapes as possible. One with half of a surrogate
    pair stays as it is."""
    if b"\\u" not in value:
        return value
    try:
        return msgspec.json.encode(json.loads(value))
    except UnicodeEncodeError:
        return value


def tags_object(tags: dict[str, Raw] | None) -> bytes:
    """Tags as a JSON object of strings: numbers and booleans become text as they were written.
    Their size is that of the texts of keys and values."""
    if not tags:
        return b""
    if len(tags) > limits.TAGS_COUNT_MAX:
        raise ValidationError(
            f"tags has {len(tags)} pairs (limit {limits.TAGS_COUNT_MAX})", field="tags"
        )
    strings: list[tuple[bytes, bytes]] = []
    for key, raw in tags.items():
        value = bytes(raw)
        first = value[:1]
        if first != b'"':
            if first in b"{[" or value == b"null":
                raise ValidationError(
                    f"tags: {shown(key)} must be a string, number or boolean", field="tags"
                )
            value = b'"' + value + b'"'
        strings.append((msgspec.json.encode(key), value))
    encoded = _object(strings)
    if len(encoded) <= limits.TAGS_SIZE_MAX:
        return encoded
    size = sum(text_size(text) for pair in strings for text in pair)
    validate.json_size(encoded, "tags", limits.TAGS_SIZE_MAX, size)
    return _object([(key, shortened(value)) for key, value in strings])


def _object(strings: list[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join([key + b":" + value for key, value in strings]) + b"}"
