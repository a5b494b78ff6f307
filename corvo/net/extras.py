"""The members of an enqueue that only some jobs have, as the bytes of an op."""

from corvo import checks, limits, ops
from corvo._fast.codec import encode_fields
from corvo.errors import ValidationError
from corvo.net import schemas
from corvo.net.actions import hold_values
from corvo.net.bodies import EnqueueBody, json_value


def encode_extras(body: EnqueueBody) -> bytes:
    """The `extras` of an Enqueue."""
    hold = body.hold
    hold_reason = ""
    hold_timeout_ns = hold_action = 0
    if hold is not None:
        if body.scheduled_at:
            raise ValidationError("hold and scheduled_at exclude each other", field="hold")
        hold_reason = checks.text(hold.reason, "reason", limits.HOLD_TEXT_SIZE_MAX)
        hold_timeout_ns, hold_action = hold_values(hold.timeout, hold.timeout_action)
    values: tuple[object, ...] = (
        checks.text(body.group_key, "group_key", limits.GROUP_KEY_SIZE_MAX),
        _expire_after_ns(body),
        "",
        "",
        0,
        b"",
        [],
        0,
        hold is not None,
        hold_reason,
        hold_timeout_ns,
        hold_action,
        schemas.checked(json_value(body.result_schema)),
    )
    return encode_fields(ops.EXTRAS_LAYOUT, values)


def _expire_after_ns(body: EnqueueBody) -> int:
    expire_after_ns = checks.length_ns(body.expire_after, "expire_after")
    if body.expire_after is not None and not expire_after_ns:
        raise ValidationError("expire_after must be longer than 0", field="expire_after")
    return expire_after_ns
