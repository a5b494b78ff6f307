"""The arguments of actions on jobs, as the bytes of an op."""

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo.engine import validate
from corvo.engine.validate import Duration
from corvo.errors import ValidationError
from corvo.model import HOLD_ACTIONS

_NO_TIMEOUT = HOLD_ACTIONS.index("none")


def encode_arguments(
    *,
    target: str = "",
    reset_attempts: bool = False,
    keep_priority: bool = True,
    priority: int = 0,
    force: bool = False,
    reason: str | None = None,
    by: str | None = None,
    note: str | None = None,
    feedback: bytes = b"",
    revise: bool = False,
    hold: tuple[int, int] = (0, 0),
    states: int = 0,
) -> bytes:
    """Layout ops.ACTION_LAYOUT; `hold` is what `hold_values` gives, `states` are bits."""
    size_max = limits.HOLD_TEXT_SIZE_MAX
    values = (
        target,
        reset_attempts,
        keep_priority,
        priority,
        force,
        validate.text(reason, "reason", size_max),
        validate.text(by, "by", size_max),
        validate.text(note, "note", size_max),
        validate.json_size(feedback, "feedback", limits.FEEDBACK_SIZE_MAX),
        revise,
        *hold,
        states,
    )
    return encode_fields(ops.ACTION_LAYOUT, values)


def hold_values(timeout: Duration, action: str | None) -> tuple[int, int]:
    """Timeout (0 = none) and action of a hold. An action without a timeout is refused."""
    timeout_ns = validate.length_ns(timeout, "timeout")
    if action is not None and timeout is None:
        raise ValidationError("timeout_action needs a timeout", field="timeout")
    if timeout is not None and not timeout_ns:
        raise ValidationError("timeout must be longer than 0", field="timeout")
    number = validate.hold_action(action)
    return (0, 0) if number == _NO_TIMEOUT else (timeout_ns, number)
