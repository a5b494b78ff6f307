"""The members of an enqueue that only some jobs have, as the bytes of an op."""

from corvo import checks, limits, ops
from corvo._fast.codec import encode_fields
from corvo.net import schemas
from corvo.net.bodies import EnqueueBody, json_value


def encode_extras(body: EnqueueBody) -> bytes:
    """The `extras` of an Enqueue."""
    values: tuple[object, ...] = (
        checks.text(body.group_key, "group_key", limits.GROUP_KEY_SIZE_MAX),
        checks.length_ns(body.expire_after, "expire_after"),
        "",
        "",
        0,
        b"",
        [],
        0,
        False,
        "",
        0,
        0,
        schemas.checked(json_value(body.result_schema)),
    )
    return encode_fields(ops.EXTRAS_LAYOUT, values)
