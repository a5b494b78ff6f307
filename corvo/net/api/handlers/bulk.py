"""Bulk operations: one action on jobs given by id, by a filter, or on all. A large one proceeds in
steps; the answer is sent when it is finished, or at once with the id of the operation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corvo import limits, ops
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine import validate
from corvo.engine.caller import Caller
from corvo.engine.commands.action_args import encode_arguments, hold_values
from corvo.engine.commands.inputs import json_value
from corvo.engine.reads import ACTION_STATES, STATE_BASE
from corvo.engine.service import Service
from corvo.errors import CorvoError, NotFound, ValidationError
from corvo.mirror import filters
from corvo.mirror.filters import Filter
from corvo.model import ACTIONS, DONE, OUTCOMES, SKIPPED, STATES, BulkOperation
from corvo.net.api.handlers.search import Asking, refuse_stale
from corvo.net.api.requests import BulkBody, UndoBody, decode, plain_values
from corvo.net.api.responses import operation_counts, operation_document, reply_json
from corvo.net.http.query import Query
from corvo.platform.echoes import shown
from corvo.platform.ids import check_job_ids

SAMPLE = 10
_ASYNC_ABOVE = 10_000
_COUNTED_AT_ONCE = 500
_IDS_AT_ONCE = 10_000
_REASONS = ("done", "not_found", "conflict")


@dataclass(slots=True)
class Selection:
    """The jobs that match a filter, on their way from the mirror into a bulk operation: page by
    page, so that entries and messages stay small."""

    filter: dict[str, Any]
    body: BulkBody
    action: int
    arguments: bytes
    operation_id: str
    index: int  # of the log, which the mirror must have read
    caller: Caller
    after: int = 0  # rows up to here were read
    upto: int = 0  # later rows do not count; 0 = not known yet
    matched: int = 0  # of a dry run, like `sample`
    sample: list[str] | None = None


@dataclass(slots=True)
class Given:
    """Jobs named by a request, on their way into a bulk operation: a part in each entry, because
    one entry with all of them would block the loop; all in one entry for a request with an
    Idempotency-Key, whose recorded outcome must cover all of them."""

    ids: list[str]
    operation_id: str
    in_background: bool
    at_once: bool
    done: int = 0  # how many are in the operation

    def part(self) -> tuple[list[str], bool]:
        """The next of them, and whether there are more."""
        count = len(self.ids) if self.at_once else limits.OPERATION_IDS_MAX
        began, self.done = self.done, self.done + count
        return self.ids[began : self.done], self.done < len(self.ids)


class Bulk:
    """Handlers of /jobs/bulk and /bulk/{id}."""

    def __init__(self, service: Service, progress_pattern: str) -> None:
        """`progress_pattern` is that of the route that streams the progress of an operation."""
        self._service = service
        self._progress_pattern = progress_pattern
        self._asking = Asking(service)

    def act(self, request: Request) -> None:
        """One action on many jobs."""
        body = decode(request.body, BulkBody)
        action = _action(body)
        if body.filter is None:
            arguments = _arguments(action, body, ())
            ids = _ids(body)
            if len(ids) <= _IDS_AT_ONCE:
                self._act(request, body, action, check_job_ids(ids, "job_ids"), arguments)
            else:  # in parts, so that other requests have their turns
                request.context = body, action, arguments
                self._service.later(self._check, request, ids, 0, {})
            return
        given = plain_values(body.filter)
        arguments = _arguments(action, body, _filter(body, given).get("state") or ())
        selection = Selection(
            given,
            body,
            action,
            arguments,
            self._service.new_operation_id(),
            self._asking.current_index(),
            request.caller,
        )
        self._select(request, selection)

    def _check(self, request: Request, ids: list[str], start: int, known: dict[str, None]) -> None:
        """Check the next part of a long list of ids, which begins at `start` of the list; `known`
        are the checked ones."""
        try:
            known.update(dict.fromkeys(check_job_ids(ids[:_IDS_AT_ONCE], "job_ids", start)))
        except CorvoError as error:
            reply_error(request, error)
            return
        rest = ids[_IDS_AT_ONCE:]
        if rest:
            self._service.later(self._check, request, rest, start + _IDS_AT_ONCE, known)
        else:
            self._service.later(self._on_checked, request, list(known))

    def _on_checked(self, request: Request, ids: list[str]) -> None:
        body, action, arguments = request.context
        try:
            self._act(request, body, action, ids, arguments)
        except CorvoError as error:
            reply_error(request, error)

    def _select(self, request: Request, selection: Selection) -> None:
        """Query the next page of a selection."""
        request.context = selection
        question: dict[str, Any] = {"filter": selection.filter, "limit": limits.OPERATION_IDS_MAX}
        question |= {"after": selection.after, "upto": selection.upto}
        self._asking.ask(request, "ids", question, selection.index, self._on_selected)

    def _on_selected(self, request: Request, found: dict[str, Any], stale: bool) -> None:
        """Count the jobs of a page, or add them to the operation."""
        selection: Selection = request.context
        first = not selection.upto
        selection.after, selection.upto = found["next"], found["upto"]
        ids: list[str] = found["ids"]
        more = selection.after > 0
        try:
            refuse_stale(stale)
            if selection.body.dry_run:
                self._count_selected(request, ids)
            elif first:
                settings = selection.action, selection.arguments, more
                values = (selection.operation_id, ids, False, *settings)
                completion = self._on_added, request
                self._service.submit(selection.caller, ops.BULK_ACTION, values, completion)
            else:
                rest = (selection.operation_id, ids, more)
                caller = selection.caller.without_key()
                self._service.submit(caller, ops.BULK_ADD, rest, (self._on_added, request))
        except CorvoError as error:
            reply_error(request, error)

    def _on_added(self, request: Request, result: Any) -> None:
        selection: Selection = request.context
        if isinstance(result, CorvoError):
            reply_error(request, result)
        elif selection.after and result.id == selection.operation_id and not request.abandoned:
            try:
                self._select(request, selection)
            except CorvoError as error:
                reply_error(request, error)
        else:  # complete, or it is the operation of an earlier request
            in_background = bool(selection.body.async_) or result.total > _ASYNC_ABOVE
            request.context = in_background
            self._on_accepted(request, result)

    def _count_selected(self, request: Request, ids: list[str]) -> None:
        selection: Selection = request.context
        sample = selection.sample = selection.sample or []

        def counted(matched: int) -> None:
            selection.matched = matched
            if selection.after:
                self._select(request, selection)
            else:
                _reply_dry_run(request, matched, sample)

        self._count(request, selection.action, ids, selection.matched, sample, counted)

    def _act(
        self, request: Request, body: BulkBody, action: int, ids: list[str], arguments: bytes
    ) -> None:
        if body.dry_run:
            sample: list[str] = []
            if body.all:
                matched, sample = self._service.reads.matching(action, SAMPLE)
                _reply_dry_run(request, matched, sample)
                return

            def counted(matched: int) -> None:
                _reply_dry_run(request, matched, sample)

            self._count(request, action, ids, 0, sample, counted)
            return
        in_background = bool(body.async_) or len(ids) > _ASYNC_ABOVE
        if body.all and not in_background:
            in_background = self._service.reads.matching(action, 0)[0] > _ASYNC_ABOVE
        with_key = request.caller.idempotency is not None
        given = request.context = Given(
            ids, self._service.new_operation_id(), in_background, with_key
        )
        part, more = given.part()
        values = (given.operation_id, part, bool(body.all), action, arguments, more)
        self._service.submit(request.caller, ops.BULK_ACTION, values, (self._on_part, request))

    def _on_part(self, request: Request, result: Any) -> None:
        given: Given = request.context
        if isinstance(result, CorvoError):
            reply_error(request, result)
            return
        part, more = given.part()
        if not part or result.id != given.operation_id or request.abandoned:
            request.context = given.in_background
            self._on_accepted(request, result)  # complete, or of an earlier request
            return
        try:
            values = (given.operation_id, part, more)
            caller = request.caller.without_key()
            self._service.submit(caller, ops.BULK_ADD, values, (self._on_part, request))
        except CorvoError as error:
            reply_error(request, error)

    def get(self, request: Request) -> None:
        """The progress of a bulk operation."""
        reply_json(request, 200, operation_document(self._service.operation(request.params[0])))

    def cancel(self, request: Request) -> None:
        """Cancel the rest of a bulk operation; changes made so far stay."""
        values = (self._service.operation(request.params[0]).id, 0, True)
        self._service.submit(request.caller, ops.BULK_STEP, values, (self._on_stopped, request))

    def undo(self, request: Request) -> None:
        """Undo a bulk operation, for jobs that did not change since."""
        body = decode(request.body or b"{}", UndoBody)
        operation = self._service.operation(request.params[0])
        in_background = bool(body.async_) or operation.counts[DONE] > _ASYNC_ABOVE
        request.context = in_background
        values = (self._service.new_operation_id(), operation.id)
        self._service.submit(request.caller, ops.BULK_UNDO, values, (self._on_accepted, request))

    def results(self, request: Request) -> None:
        """A page of the jobs with one kind of outcome."""
        operation = self._service.operation(request.params[0])
        query = Query(request)
        kind = query.text("kind") or OUTCOMES[DONE]
        if kind not in OUTCOMES:
            raise ValidationError(
                f"kind {shown(kind)} is unknown (use {', '.join(OUTCOMES)})", field="kind"
            )
        limit = query.integer("limit", limits.RESULTS_PAGE_MAX, 1, limits.RESULTS_PAGE_MAX)
        rows, cursor = self._service.reads.operation_results(
            operation, query.seq("cursor"), OUTCOMES.index(kind), limit
        )
        document: dict[str, Any] = {"items": [_item(job_id, code) for job_id, code in rows]}
        if cursor:
            document["cursor"] = str(cursor)
        reply_json(request, 200, document)

    def _count(
        self,
        request: Request,
        action: int,
        ids: list[str],
        matched: int,
        sample: list[str],
        then: Callable[[int], None],
    ) -> None:
        """The jobs that the action would be done to, a few at a time; `then` gets their number."""
        if request.abandoned:
            return
        for job_id in ids[:_COUNTED_AT_ONCE]:
            job = self._service.reads.job(job_id)
            if job is not None and job.state in ACTION_STATES[action]:
                matched += 1
                if len(sample) < SAMPLE:
                    sample.append(job_id)
        rest = ids[_COUNTED_AT_ONCE:]
        if rest:
            self._service.later(self._count, request, action, rest, matched, sample, then)
        else:
            then(matched)

    def _on_accepted(self, request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
            return
        # The recorded outcome of an earlier request has an old state of the operation.
        operation: BulkOperation = self._service.reads.operation(result.id) or result
        if not operation.finished_ns and request.context:
            progress = self._progress_pattern.replace("{id}", operation.id)
            document: dict[str, Any] = {"bulk_operation_id": operation.id, "status": "processing"}
            document |= {"estimated_total": operation.total, "progress_url": progress}
            reply_json(request, 202, document)
        elif not operation.finished_ns:
            self._service.watch_operation(operation.id, (self._on_finished, request))
        else:
            self._on_finished(request, operation)

    def _on_finished(self, request: Request, operation: BulkOperation | None) -> None:
        if request.abandoned:
            return
        if operation is None:
            reply_error(request, NotFound("the operation has finished and its record has expired"))
            return
        document = {"bulk_operation_id": operation.id, **operation_counts(operation)}
        document["duration_ms"] = (operation.finished_ns - operation.created_ns) // limits.MS_NS
        reply_json(request, 200, document)

    @staticmethod
    def _on_stopped(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
        else:
            reply_json(request, 200, operation_document(result))


def _reply_dry_run(request: Request, matched: int, sample: list[str]) -> None:
    reply_json(request, 200, {"dry_run": True, "matched": matched, "sample": sample})


def _action(body: BulkBody) -> int:
    if not body.action:
        raise ValidationError("action is required", field="action")
    if body.action not in ACTIONS:
        raise ValidationError(
            f"unknown bulk action: {shown(body.action)} (use {', '.join(ACTIONS)})",
            field="action",
        )
    return ACTIONS.index(body.action)


def _arguments(action: int, body: BulkBody, states: tuple[str, ...]) -> bytes:
    """`states` are those that the filter names: a job that has left them is skipped."""
    name = ACTIONS[action]
    if name == "move" and not body.move_to_queue:
        raise ValidationError("move_to_queue is required for move action", field="move_to_queue")
    if name == "change_priority" and body.priority is None:
        raise ValidationError("priority is required for change_priority action", field="priority")
    target = body.move_to_queue
    return encode_arguments(
        target="" if target is None else validate.queue_name(target, "move_to_queue"),
        reset_attempts=bool(body.reset_attempts),
        keep_priority=body.keep_priority is not False,
        priority=validate.priority(body.priority),
        force=bool(body.force),
        reason=body.reason,
        by=body.by,
        note=body.note,
        feedback=json_value(body.feedback),
        revise=bool(body.revise),
        hold=hold_values(body.timeout, body.timeout_action),
        states=sum(1 << STATES.index(state) for state in states),
    )


def _one_of_three(body: BulkBody) -> None:
    given = [body.job_ids is not None, body.filter is not None, bool(body.all)]
    if sum(given) != 1:
        raise ValidationError("give exactly one of job_ids, filter, and all: true")


def _ids(body: BulkBody) -> list[str]:
    """The given ids; none if the action is on all jobs."""
    _one_of_three(body)
    if body.job_ids is None:
        return []
    validate.count(len(body.job_ids), "job_ids", limits.BULK_IDS_MAX)
    return body.job_ids


def _filter(body: BulkBody, given: dict[str, Any]) -> Filter:
    """The filter; an empty one is refused."""
    _one_of_three(body)
    found = filters.parse(given)
    if not found.values:
        raise ValidationError("filter is empty: to act on every job, use all: true", field="filter")
    return found


def _item(job_id: str, code: int) -> dict[str, Any]:
    item: dict[str, Any] = {"job_id": job_id}
    if code >= STATE_BASE:
        item["reason"] = f"state is {STATES[code - STATE_BASE]}"
    elif code >= SKIPPED:
        item["reason"] = _REASONS[code]
    return item
