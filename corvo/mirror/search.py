"""Queries on a mirror file: pages of jobs, counts, ids, full text and reports, encoded as JSON."""

import contextlib
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw

from corvo import limits
from corvo.errors import MirrorUnavailable
from corvo.mirror import filters, query, reports, rows
from corvo.mirror.counters import ALL
from corvo.mirror.database import Database, Failure
from corvo.mirror.facets import TAG_PREFIX, RowSet, ranked
from corvo.mirror.file import MirrorFile
from corvo.mirror.filters import Filter
from corvo.model import PRIORITY_NAMES
from corvo.platform.durations import format_time

_ENCODE = msgspec.json.Encoder().encode
_WITHIN_S: Final = limits.SEARCH_NS / 1e9
_FEW: Final = 4_096  # up to this many rows are read and sorted instead of walked in order
_READ_COST: Final = 4  # cost of a row read and sorted, relative to a walked row
_LISTED: Final = 50_000  # maximum number of rows listed in a SQL parameter
_COUNT_WITHIN_S: Final = 0.5
_NO_QUEUE: Final = -1  # number of an unknown queue
_DOCUMENTS: Final = 100  # jobs read per query, until a page is full
_TEXTS: Final = (
    "id, queue, state, priority, attempt, max_retries, unique_key, batch_id, worker_id, parent_id,"
    " chain_id, chain_step, group_key, schedule_id, hold_reason, error_count, scheduled_at,"
    " expire_at, created_at, started_at, completed_at, failed_at, tags, progress, payload"
)
_TIMES: Final = (
    "scheduled_at",
    "expire_at",
    "created_at",
    "started_at",
    "completed_at",
    "failed_at",
)
_PLAIN: Final = (
    "unique_key",
    "batch_id",
    "worker_id",
    "parent_id",
    "chain_id",
    "group_key",
    "schedule_id",
    "hold_reason",
    "error_count",
)
_COLUMNS: Final = tuple(name.strip() for name in _TEXTS.split(","))


async def search(mirror_file: MirrorFile, arguments: Mapping[str, Any], stale: bool) -> bytes:
    """A page of jobs: {jobs, total, total_is_exact, cursor?, has_more, duration_ms}."""
    began = time.monotonic()
    filter = filters.parse(arguments["filter"])
    order = query.parse_order(arguments.get("sort"), arguments.get("order"))
    after = query.parse_cursor(order, arguments.get("cursor"))
    limit = arguments["limit"]
    async with mirror_file.reader() as database:
        found, total = await _page(mirror_file, database, filter, order, after, limit + 1)
        exact = total >= 0
        documents = await _documents(database, [number for number, _, _ in found[:limit]])
        more = len(found) > len(documents)
        if not exact and after is None and not more:
            total, exact = len(documents), True
        elif not exact:
            total, exact = await _count(database, mirror_file, filter, len(documents) + more)
    page: dict[str, Any] = {"jobs": documents, "total": total, "total_is_exact": exact}
    page["has_more"] = more
    if more:
        _, value, job_id = found[len(documents) - 1]
        page["cursor"] = query.encode_cursor(order, value, job_id)
    return _finish(page, began, stale)


async def _page(
    mirror_file: MirrorFile,
    database: Database,
    filter: Filter,
    order: query.Order,
    after: tuple[int, str] | None,
    limit: int,
) -> tuple[list[Any], int]:
    """Rows (number, sorted, id) of a page, and the total number of matches or -1 if unknown."""
    possible, exact = mirror_file.facets.select(filter)
    count = len(possible)
    total = count if exact and not mirror_file.pending_deletion.any else -1
    if not count:
        return [], 0
    numbers = None
    if count <= _FEW:
        walked = len(mirror_file.facets.in_order(filter)[0]) * limit // count
        if order.sort != "created_at" or walked > _READ_COST * count:
            numbers = list(possible)
    tags = filter.get("tags") or {}
    uncounted = next((key for key in tags if not mirror_file.facets.counts(key)), None)
    text, values = query.page(
        filter, mirror_file.pending_deletion, order, after, limit, numbers, uncounted
    )
    return await database.within(_WITHIN_S, text, values), total


async def _count(
    database: Database, mirror_file: MirrorFile, filter: Filter, at_least: int
) -> tuple[int, bool]:
    """Count the matches, up to SEARCH_COUNTED_MAX and for a limited time; and whether it is
    exact."""
    bound = limits.SEARCH_COUNTED_MAX
    numbers = _listed(mirror_file.facets.select(filter)[0])
    text, values = query.matches(filter, mirror_file.pending_deletion, "1", bound + 1, numbers)
    try:
        counted = await database.within(_COUNT_WITHIN_S, f"SELECT count(*) FROM ({text})", values)
    except MirrorUnavailable:  # timeout
        return at_least, False
    count = counted[0][0]
    return min(count, bound), count <= bound


def _listed(possible: RowSet) -> list[int] | None:
    """The rows that can match, or None if there are too many to list."""
    return list(possible) if len(possible) <= _LISTED else None


async def _documents(database: Database, numbers: list[int]) -> list[dict[str, Any]]:
    """Read the jobs of these rows, in this order, up to the size of a page but at least one."""
    documents: list[dict[str, Any]] = []
    size = 0
    text = f"SELECT number, {_TEXTS} FROM jobs WHERE number IN (SELECT value FROM json_each(?))"
    for at in range(0, len(numbers), _DOCUMENTS):
        part = numbers[at : at + _DOCUMENTS]
        by_number = {row[0]: row[1:] for row in await database.all(text, (rows.json_list(part),))}
        errors = await _last_errors(database, part)
        for number in part:
            if number not in by_number:  # deleted since the page query
                continue
            values = dict(zip(_COLUMNS, by_number[number], strict=True))
            size += len(values["payload"]) + len(values["progress"] or "")
            if documents and size > limits.PAGE_SIZE_MAX:
                return documents
            documents.append(_document(values, errors.get(number)))
    return documents


async def _last_errors(database: Database, numbers: list[int]) -> dict[int, str]:
    text = (
        "SELECT j.number, e.error FROM jobs j CROSS JOIN job_errors e"
        " ON e.number = j.number AND e.slot = j.error_count - 1"
        " WHERE j.number IN (SELECT value FROM json_each(?)) AND j.error_count > 0"
    )
    return dict(await database.all(text, (rows.json_list(numbers),)))


def _document(values: dict[str, Any], last_error: str | None) -> dict[str, Any]:
    document = {
        "id": values["id"],
        "queue": values["queue"],
        "state": values["state"],
        "payload": Raw(values["payload"].encode()),
        "priority": values["priority"],
        "priority_name": PRIORITY_NAMES[values["priority"]],
        "attempt": values["attempt"],
        "max_retries": values["max_retries"],
    }
    for name in _PLAIN:
        if values[name]:
            document[name] = values[name]
    if values["chain_id"]:
        document["chain_step"] = values["chain_step"]
    for name in ("tags", "progress"):
        if values[name]:
            document[name] = Raw(values[name].encode())
    for name in _TIMES:
        if values[name]:
            document[name] = format_time(values[name])
    if last_error is not None:
        document["last_error"] = last_error
    return document


async def facets(mirror_file: MirrorFile, arguments: Mapping[str, Any], stale: bool) -> bytes:
    """Counts of matching jobs: {total, total_is_exact, facets: {by: {value: count}}}."""
    began = time.monotonic()
    filter = filters.parse(arguments["filter"])
    possible, exact = mirror_file.facets.select(filter)
    if not exact:
        bound = limits.SEARCH_COUNTED_MAX
        numbers = _listed(possible)
        text, values = query.matches(
            filter, mirror_file.pending_deletion, "j.number", bound + 1, numbers
        )
        async with mirror_file.reader() as database:
            found = await database.within(_WITHIN_S, text, values)
        exact = len(found) <= bound
        possible = possible & type(possible)(row[0] for row in found[:bound])
    split: dict[str, dict[str, int]] = {}
    for dimension in arguments["by"]:
        tag = dimension.removeprefix(TAG_PREFIX)
        if dimension == tag or mirror_file.facets.counts(tag):
            split[dimension] = mirror_file.facets.split(possible, dimension)
        else:
            split[dimension] = await _split_by_tag(mirror_file, possible, tag)
    counted = exact and not mirror_file.pending_deletion.any
    response = {"total": len(possible), "total_is_exact": counted, "facets": split}
    return _finish(response, began, stale)


async def _split_by_tag(mirror_file: MirrorFile, possible: RowSet, key: str) -> dict[str, int]:
    """Count the values of a tag without facet sets, over the first matches up to a limit."""
    numbers = rows.json_list(possible[: limits.SEARCH_COUNTED_MAX])
    text = (
        "SELECT count(*), t.value FROM json_each(?) n CROSS JOIN jobs j ON j.number = n.value"
        " CROSS JOIN json_each(j.tags) t WHERE t.key = ? GROUP BY t.value"
    )
    async with mirror_file.reader() as database:
        return ranked(await database.within(_WITHIN_S, text, (numbers, key)))


async def ids(
    mirror_file: MirrorFile, arguments: Mapping[str, Any], _stale: bool
) -> dict[str, Any]:
    """A page of ids of matching jobs, in row order: {ids, next, upto}.

    `after` is `next` of the previous page (0 = no more pages); `upto` is the last row at the time
    of the first page."""
    filter = filters.parse(arguments["filter"])
    possible, exact = mirror_file.facets.select(filter)
    after, limit = arguments["after"], arguments["limit"]
    upto = arguments["upto"] or (mirror_file.facets.all.max() if mirror_file.facets.all else 1)
    found: list[str] = []
    listed = limit if exact else _LISTED
    async with mirror_file.reader() as database:
        while len(found) < limit:
            numbers = list(islice(possible.iter_equal_or_larger(after + 1), listed))
            while numbers and numbers[-1] > upto:
                numbers.pop()
            if not numbers:
                after = 0
                break
            wanted = limit - len(found)
            text, values = query.matching_ids(filter, mirror_file.pending_deletion, wanted, numbers)
            matching = await database.within(_WITHIN_S, text, values)
            found += [job_id for _, job_id in matching]
            after = matching[-1][0] if len(matching) == wanted else numbers[-1]
    return {"ids": found, "next": after, "upto": upto}


async def fulltext(mirror_file: MirrorFile, arguments: Mapping[str, Any], stale: bool) -> bytes:
    """Full-text search in payload, tags and queue: {q, results}."""
    began = time.monotonic()
    words, limit = arguments["q"], arguments["limit"]
    columns = "j.id, j.queue, j.state, j.payload, IFNULL(j.tags, ''), j.created_at"
    found: list[Any] = []
    rest = query.conditions(Filter({}), mirror_file.pending_deletion)
    visible = "".join(f" AND {text}" for text, _ in rest)
    more = [value for _, values in rest for value in values]
    async with mirror_file.reader() as database:
        text = (
            f"SELECT {columns} FROM jobs_fts f CROSS JOIN jobs j ON j.number = f.rowid"
            f" WHERE jobs_fts MATCH ?{visible} ORDER BY f.rank LIMIT ?"
        )
        with contextlib.suppress(Failure):  # the words are not a valid FTS5 query
            found = await database.within(_WITHIN_S, text, [words.replace("\0", " "), *more, limit])
        if not found:
            parts = [
                query.contains(query.PAYLOAD, "j.payload_text", words),
                query.contains(query.TAGS, "j.tags_text", words),
                query.contains("j.queue", "j.queue", words),
            ]
            text = (
                f"SELECT {columns} FROM jobs j WHERE ({' OR '.join(part for part, _ in parts)})"
                f"{visible} ORDER BY j.created_at DESC, j.id DESC LIMIT ?"
            )
            values = [value for _, own in parts for value in own]
            found = await database.within(_WITHIN_S, text, [*values, *more, limit])
    names = ("id", "queue", "state", "payload", "tags")
    results: list[dict[str, Any]] = []
    size = 0
    for *values, created_ns in found:
        size += len(values[3])
        if results and size > limits.PAGE_SIZE_MAX:
            break
        document = dict(zip(names, values, strict=True))
        document["created_at"] = format_time(created_ns)
        results.append(document)
    return _finish({"q": words, "results": results}, began, stale)


async def throughput(mirror_file: MirrorFile, arguments: Mapping[str, Any], _stale: bool) -> bytes:
    """Counts of each of the last minutes: [{minute, enqueued, completed, failed}]."""
    number, now_ns = _reported(mirror_file, arguments), arguments["now_ns"]
    async with mirror_file.reader() as database:
        return _ENCODE(await reports.throughput(database, number, now_ns, arguments["minutes"]))


async def history(mirror_file: MirrorFile, arguments: Mapping[str, Any], stale: bool) -> bytes:
    """Points of a chart: {step_seconds, points, duration_ms}."""
    began = time.monotonic()
    number, now_ns = _reported(mirror_file, arguments), arguments["now_ns"]
    minutes, step = arguments["minutes"], arguments["step"]
    async with mirror_file.reader() as database:
        points = await reports.history(database, number, now_ns, minutes, step)
    return _finish({"step_seconds": 60 * step, "points": points}, began, stale)


async def latency(mirror_file: MirrorFile, arguments: Mapping[str, Any], stale: bool) -> bytes:
    """Histograms of waiting and run times of jobs: {delivery, run, duration_ms}."""
    began = time.monotonic()
    number, now_ns = _reported(mirror_file, arguments), arguments["now_ns"]
    async with mirror_file.reader() as database:
        found = await reports.latencies(database, number, now_ns, arguments["period_ns"])
    return _finish({**found}, began, stale)


def _reported(mirror_file: MirrorFile, arguments: Mapping[str, Any]) -> int:
    """The queue number for the reports: ALL without a queue, and _NO_QUEUE for an unknown queue."""
    queue = arguments["queue"]
    return (mirror_file.queue_number(queue) or _NO_QUEUE) if queue else ALL


def _finish(response: dict[str, Any], began: float, stale: bool) -> bytes:
    response["duration_ms"] = round((time.monotonic() - began) * 1000, 3)
    if stale:
        response["stale"] = True
    return _ENCODE(response)
