"""Queries of the mirror: search, facets, full text, dead jobs."""

from collections.abc import Callable
from typing import Any

from corvo import limits
from corvo._fast.http.exchange import Request, header_line, reply_error
from corvo.engine.service import Service
from corvo.errors import CorvoError, MirrorUnavailable, ValidationError
from corvo.mirror import filters
from corvo.mirror.facets import DIMENSIONS, TAG_PREFIX
from corvo.net.api.requests import FacetsBody, decode_object, decode_optional, plain_values
from corvo.net.api.responses import reply_json
from corvo.net.http.query import Query
from corvo.platform.echoes import shown

_STALE = header_line("X-Corvo-Stale", "true")
_WAIT_S = (limits.MIRROR_WAIT_NS + limits.SEARCH_NS) / 1e9 + 1
_PAGE_FIELDS = ("sort", "order", "cursor", "limit")

Answer = Callable[[Request, Any, bool], None]


class Search:
    """Handlers of reads that the mirror serves."""

    def __init__(self, service: Service) -> None:
        self._asking = Asking(service)
        self._service = service

    def search(self, request: Request) -> None:
        """A page of the jobs that match a filter."""
        body = decode_object(request.body)
        page = {name: body.pop(name, None) for name in _PAGE_FIELDS}
        self._search(request, body, page)

    def _search(self, request: Request, fields: dict[str, Any], page: dict[str, Any]) -> None:
        filters.parse(fields)
        for name in ("sort", "order", "cursor"):
            if not isinstance(page[name], str | None):
                raise ValidationError(f"{name} must be a string", field=name)
            if page[name] == "" and name != "cursor":  # an empty position is the start
                raise ValidationError(f"{name} must not be empty", field=name)
            if len(page[name] or "") > limits.SEARCH_TEXT_SIZE_MAX:
                page[name] = None  # none of ours
        limit = page["limit"]
        if limit is not None and type(limit) is not int:
            raise ValidationError(
                f"limit must be a whole number, not {shown(limit)}", field="limit"
            )
        if limit is None or not 1 <= limit <= limits.SEARCH_PAGE_MAX:
            limit = limits.SEARCH_PAGE_DEFAULT
        arguments = {"filter": fields, **page, "limit": limit}
        self._asking.ask(request, "search", arguments, min_index(request), reply_mirrored)

    def dead(self, request: Request) -> None:
        """A page of the dead jobs."""
        query = Query(request)
        fields: dict[str, Any] = {"state": ["dead"]}
        if queue := query.text("queue"):
            fields["queue"] = queue
        limit = query.integer("limit", limits.SEARCH_PAGE_DEFAULT, 1, limits.SEARCH_PAGE_MAX)
        page = {"sort": None, "order": None, "cursor": query.text("cursor"), "limit": limit}
        self._search(request, fields, page)

    def facets(self, request: Request) -> None:
        """How many jobs match a filter, and how many of them by state, queue, priority, tag."""
        body = decode_optional(request.body, FacetsBody)
        fields = plain_values({} if body.filter is None else body.filter)
        filters.parse(fields)
        by = ["state"] if body.by is None else body.by
        arguments = {"filter": fields, "by": _dimensions(by)}
        self._asking.ask(request, "facets", arguments, min_index(request), reply_mirrored)

    def fulltext(self, request: Request) -> None:
        """The jobs with some words in payload, tags or queue, the best matches first."""
        query = Query(request)
        words = query.text("q")
        if not words.strip():
            raise ValidationError("q is required", field="q")
        size = len(words.encode())
        if size > limits.SEARCH_TEXT_SIZE_MAX:
            raise ValidationError(f"q has {size} bytes (limit {limits.SEARCH_TEXT_SIZE_MAX})")
        limit = query.integer("limit", limits.SEARCH_PAGE_DEFAULT, 1, limits.FULLTEXT_PAGE_MAX)
        arguments = {"q": words, "limit": limit}
        self._asking.ask(request, "fulltext", arguments, min_index(request), reply_mirrored)

    def rebuild(self, request: Request) -> None:
        """Build the mirror again from all documents; the answer comes when that is done."""
        wait_s = limits.REBUILD_WAIT_NS / 1e9
        self._service.mirror.ask("rebuild", {}, wait_s, (_on_rebuilt, request))


class Asking:
    """Sends queries of handlers to the mirror."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def ask(
        self,
        request: Request,
        method: str,
        arguments: dict[str, Any],
        index: int,
        answer: Answer,
    ) -> None:
        """Call `answer` with the result of the mirror and whether it is older than `index`, an
        index of the log (-1 = any age will do). An error is answered here."""
        if index >= 0:
            index = self._service.flushed_index(index)
        arguments |= {"index": index, "wait_ms": limits.MIRROR_WAIT_NS // limits.MS_NS}
        completion = (self._on_answer, (request, answer))
        self._service.mirror.ask(method, arguments, _WAIT_S, completion)

    @staticmethod
    def _on_answer(argument: tuple[Request, Answer], result: Any) -> None:
        request, answer = argument
        if request.abandoned:
            return
        if isinstance(result, CorvoError):
            reply_error(request, result)
        else:
            answer(request, *result)

    def current_index(self) -> int:
        """The index of the last entry applied."""
        return self._service.reads.applied_index


def min_index(request: Request) -> int:
    """The header X-Corvo-Min-Index; -1 = none."""
    text = request.min_index
    if text is None:
        return -1
    if not text.isdigit() or len(text) > 19:
        raise ValidationError("the header X-Corvo-Min-Index must be a number")
    return min(int(text), limits.DUE_MAX_NS)


def _dimensions(by: list[str]) -> list[str]:
    if not 0 < len(by) <= limits.FACETS_MAX:
        raise ValidationError(f"by must be a list of 1-{limits.FACETS_MAX} names", field="by")
    for name in by:
        tagged = name.startswith(TAG_PREFIX) and name != TAG_PREFIX
        if not (tagged or name in DIMENSIONS):
            raise ValidationError(
                f"by: {shown(name)} is unknown (use {', '.join(DIMENSIONS)} or tag:<key>)",
                field="by",
            )
    return list(dict.fromkeys(by))


def reply_mirrored(request: Request, document: bytes, stale: bool) -> None:
    """Answer with the result of the mirror."""
    request.reply(200, document, _STALE if stale else b"")


def _on_rebuilt(request: Request, result: Any) -> None:
    if request.abandoned:
        return
    if isinstance(result, CorvoError):
        reply_error(request, result)
    else:
        reply_json(request, 200, {"status": "ok", "rebuilt": True, **result})


def refuse_stale(stale: bool) -> None:
    """Raise MirrorUnavailable for a stale result: an action must not rely on it."""
    if stale:
        raise MirrorUnavailable("the mirror lags: try again in a moment")
