"""Optional fields of an enqueue, encoded for the op."""

from collections.abc import Callable
from typing import Any

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo.engine import validate
from corvo.engine.commands import result_schemas
from corvo.engine.commands.action_args import hold_values
from corvo.engine.commands.inputs import BatchBody, ChainBody, EnqueueBody, FollowerBody, json_value
from corvo.errors import CorvoError, ValidationError
from corvo.model import ON_DEPENDENCY_FAILURE
from corvo.platform.echoes import shown
from corvo.platform.ids import check_job_id, check_job_ids
from corvo.records import NEW_JOB_OPTIONS, Field, names

_CHAIN_STEP_MIN = -2
_NAMES = names(NEW_JOB_OPTIONS)
_PLAIN = [field for field in NEW_JOB_OPTIONS if field.max]


class OptionsEncoder:
    """Checks and encodes optional fields; `new_chain_id` makes the ids of chains."""

    def __init__(self, payload_size_max: int, new_chain_id: Callable[[], str]) -> None:
        self._payload_size_max = payload_size_max
        self._new_chain_id = new_chain_id

    def encode(self, body: EnqueueBody, batch_id: str = "") -> bytes:
        """The `options` of an Enqueue; `batch_id` is that of the whole request."""
        if body.batch_id is not None:
            if batch_id:
                raise ValidationError("batch_id: the request names a batch", field="batch_id")
            batch_id = check_job_id(body.batch_id, "batch_id")
        chain_id, chain_step, chain = self._chain(body)
        held, hold_reason, hold_timeout_ns, hold_action = _hold(body)
        values: dict[str, object] = {
            "expire_after_ns": _expire_after_ns(body),
            "batch_id": batch_id,
            "chain_id": chain_id,
            "chain_step": chain_step,
            "chain": chain,
            "depends_on": depends_on(body.depends_on),
            "on_dependency_failure": on_dependency_failure(body.on_dependency_failure),
            "hold": held,
            "hold_reason": hold_reason,
            "hold_timeout_ns": hold_timeout_ns,
            "hold_action": hold_action,
            "result_schema": result_schemas.checked(json_value(body.result_schema)),
        }
        for field in _PLAIN:
            values[field.name] = _checked(field, getattr(body, field.name))
        return encode_fields(ops.OPTIONS_LAYOUT, tuple(values[name] for name in _NAMES))

    def encode_batch(self, batch_id: str, body: BatchBody) -> bytes:
        """The batch of an EnqueueBatch."""
        on_complete = b""
        if body.callback_queue is not None:
            if body.on_complete is not None:
                raise ValidationError(
                    "batch: callback_queue and on_complete are the same thing",
                    field="callback_queue",
                )
            queue = validate.queue_name(body.callback_queue, "callback_queue")
            complete = FollowerBody(queue=queue, payload=body.callback_payload)
            on_complete = self._follower(complete, "batch callback")
        elif json_value(body.callback_payload):
            raise ValidationError(
                "batch: callback_payload needs a callback_queue", field="callback_payload"
            )
        values = (
            batch_id,
            self._follower(body.on_success, "batch on_success"),
            on_complete or self._follower(body.on_complete, "batch on_complete"),
            self._follower(body.on_death, "batch on_death"),
        )
        return encode_fields(ops.BATCH_LAYOUT, values)

    def _chain(self, body: EnqueueBody) -> tuple[str, int, bytes]:
        """Chain id, step and definition: a new chain, a place in a given one, or a mere link."""
        if body.chain is not None:
            return self._new_chain_id(), 0, self._definition(body.chain, 0, body.queue)
        chain_id = "" if body.chain_id is None else check_job_id(body.chain_id, "chain_id")
        step = body.chain_step or 0
        steps_max = limits.CHAIN_STEPS_MAX
        if not _CHAIN_STEP_MIN <= step < steps_max:
            raise ValidationError(
                f"chain_step {shown(step)} is out of range (-2 to {steps_max - 1})",
                field="chain_step",
            )
        if body.chain_config is not None:
            chain = self._definition(body.chain_config, step, body.queue)
            return chain_id or self._new_chain_id(), step, chain
        if body.chain_step is not None and not chain_id:
            raise ValidationError("chain_step needs a chain_id", field="chain_step")
        return chain_id, step, b""

    def _definition(self, chain: ChainBody, step: int, queue: str | None) -> bytes:
        steps = chain.steps or []
        if len(steps) < 2:
            raise ValidationError(f"chain has {len(steps)} steps (at least 2)", field="steps")
        validate.count(len(steps), "chain steps", limits.CHAIN_STEPS_MAX)
        if step >= len(steps):
            raise ValidationError(
                f"chain_step {step} is out of range (the chain: {len(steps)})", field="chain_step"
            )
        if step >= 0 and steps[step].queue != queue:
            raise ValidationError(
                f"chain step {step} has the queue {shown(steps[step].queue)}, "
                f"the job {shown(queue)}: they must be the same"
            )
        encoded = encode_fields(
            ops.CHAIN_LAYOUT,
            (
                [self._step(item, index) for index, item in enumerate(steps)],
                self._follower(chain.on_failure, "chain on_failure"),
                self._follower(chain.on_exit, "chain on_exit"),
            ),
        )
        return validate.json_size(encoded, "chain", limits.CHAIN_SIZE_MAX)

    def _step(self, body: FollowerBody, index: int) -> bytes:
        try:
            return self._follower(body, f"chain step {index}")
        except CorvoError as error:
            error.fields["index"] = index
            raise

    def _follower(self, body: FollowerBody | None, what: str) -> bytes:
        if body is None:
            return b""
        if not body.queue:
            raise ValidationError(f"{what} needs a queue", field="queue")
        payload = json_value(body.payload)
        values = (
            validate.queue_name(body.queue, f"queue of {what}"),
            validate.json_size(payload, f"payload of {what}", self._payload_size_max),
        )
        return encode_fields(ops.FOLLOWER_LAYOUT, values)


def _checked(field: Field, value: Any) -> object:
    """An option that is checked by its kind and bound alone."""
    if field.kind == "s":
        return validate.key(value, field.name, field.max)
    if field.kind == "b":
        return validate.json_size(json_value(value), field.name, field.max)
    number = value or 0
    if not 0 <= number <= field.max:
        raise ValidationError(
            f"{field.name} {shown(number)} is out of range (0 to {field.max})", field=field.name
        )
    return number


def depends_on(ids: list[str] | None) -> list[str]:
    """Job ids, each once; blank entries are left out."""
    given = [job_id.strip() for job_id in ids or ()]
    try:
        found = check_job_ids([job_id for job_id in given if job_id], "depends_on")
    except ValidationError:
        for index, job_id in enumerate(given):
            if job_id:
                check_job_ids([job_id], "depends_on", index)
        raise
    if len(found) > limits.DEPENDENCIES_MAX:
        raise ValidationError(
            f"depends_on has {len(found)} items (limit {limits.DEPENDENCIES_MAX})",
            field="depends_on",
        )
    return found


def on_dependency_failure(value: str | None) -> int:
    """The policy for a job when one of its dependencies fails."""
    if value is None:
        return 0
    if value not in ON_DEPENDENCY_FAILURE:
        raise ValidationError(
            f"on_dependency_failure {shown(value)} is unknown "
            f"(use {', '.join(ON_DEPENDENCY_FAILURE)})",
            field="on_dependency_failure",
        )
    return ON_DEPENDENCY_FAILURE.index(value)


def _hold(body: EnqueueBody) -> tuple[bool, str, int, int]:
    """Whether a job is held from the start, why, for how long (ns) and what happens then."""
    hold = body.hold
    if hold is None:
        return False, "", 0, 0
    for name, given in (("scheduled_at", body.scheduled_at), ("delay", body.delay)):
        if given is not None:
            raise ValidationError(f"hold and {name} exclude each other", field="hold")
    reason = validate.text(hold.reason, "reason", limits.HOLD_TEXT_SIZE_MAX)
    timeout_ns, action = hold_values(hold.timeout, hold.timeout_action)
    return True, reason, timeout_ns, action


def _expire_after_ns(body: EnqueueBody) -> int:
    expire_after_ns = validate.length_ns(body.expire_after, "expire_after")
    if body.expire_after is not None and not expire_after_ns:
        raise ValidationError("expire_after must be longer than 0", field="expire_after")
    return expire_after_ns
