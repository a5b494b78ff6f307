"""Translation of filters to SQL; all user input is bound as parameters.

There are three query plans for a page. If few rows can match (according to the facets), fewer than
an index walk would read, or if a member of the filter selects few rows (a unique key, a batch, a
tag without sets), these rows are read and sorted. Otherwise an index returns rows in order, and the
first matches are the page; an index that starts with queue or state is walked once per state. A
sort by anything except the creation time reads all matching rows.
"""

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from corvo.mirror.filters import Filter
from corvo.mirror.jq import Condition
from corvo.model import STATES

Sql = tuple[str, list[Any]]

_I64: Final = 1 << 63
_LAST: Final = chr(0x10FFFF)
_ORDERS: Final = {
    "created_at": "j.created_at",
    "priority": "j.priority",
    "started_at": "IFNULL(j.started_at, 0)",
    "completed_at": "IFNULL(j.completed_at, 0)",
    "attempt": "j.attempt",
}
_INDEXED: Final = ("unique_key", "batch_id", "parent_id", "chain_id", "worker_id")
_COMPARED: Final = {
    "created_after": "j.created_at > ?",
    "created_before": "j.created_at < ?",
    "scheduled_after": "j.scheduled_at > ?",
    "scheduled_before": "j.scheduled_at < ?",
    "started_after": "j.started_at > ?",
    "started_before": "j.started_at < ?",
    "completed_after": "j.completed_at > ?",
    "completed_before": "j.completed_at < ?",
    "expire_after": "j.expire_at > ?",
    "expire_before": "j.expire_at < ?",
    "attempt_min": "j.attempt >= ?",
    "attempt_max": "j.attempt <= ?",
    "priority": "j.priority = ?",
}
PAYLOAD: Final = "IFNULL(j.payload_text, j.payload)"
TAGS: Final = "IFNULL(j.tags_text, j.tags)"
# The payload as jq reads it; a row with escapes costs a call of `texts.plain_json`.
_VALUE: Final = "IIF(j.payload_text IS NULL, j.payload, plain_json(j.payload))"
_TAGGED: Final = "SELECT number FROM job_tags WHERE key = ? AND value = ?"
_HAS_TAG: Final = (
    "EXISTS (SELECT 1 FROM job_tags t WHERE t.key = ? AND t.value = ? AND t.number = j.number)"
)


@dataclass(frozen=True, slots=True)
class Order:
    """The sort order of pages; ties are sorted by id."""

    sort: str
    descending: bool

    @property
    def column(self) -> str:
        """The SQL expression that is sorted by."""
        return _ORDERS[self.sort]

    @property
    def clause(self) -> str:
        """The ORDER BY clause over the columns of a page."""
        direction = "DESC" if self.descending else "ASC"
        return f"ORDER BY sorted {direction}, id {direction}"


@dataclass(frozen=True, slots=True)
class PendingDeletions:
    """Jobs with a pending deletion, which queries hide.

    `queues` are destroyed queues. `cleared` are (queue number, seq) of cleared queues: a clear
    deletes waiting jobs whose last event is not after seq."""

    queues: tuple[int, ...] = ()
    cleared: tuple[tuple[int, int], ...] = ()

    @property
    def any(self) -> bool:
        """Whether there may be jobs with a pending deletion."""
        return bool(self.queues or self.cleared)


def parse_order(sort: str | None, order: str | None) -> Order:
    """Parse an order; the default is created_at, descending."""
    return Order(sort if sort in _ORDERS else "created_at", order != "asc")


# ---- cursors ----


def encode_cursor(order: Order, value: int, job_id: str) -> str:
    """Encode the position after a job in an order."""
    fields = [order.sort, int(order.descending), value, job_id]
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


def parse_cursor(order: Order, text: str | None) -> tuple[int, str] | None:
    """Decode a cursor; None (the start) if it is invalid or of another order."""
    if not text:
        return None
    try:
        raw = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
        sort, descending, value, job_id = json.loads(raw)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        return None
    fits = (sort, descending) == (order.sort, int(order.descending))
    typed = type(value) is int and abs(value) < _I64 and isinstance(job_id, str)
    return (value, job_id) if fits and typed and job_id.isascii() else None


# ---- conditions ----


def conditions(
    filter: Filter, pending_deletion: PendingDeletions, without: Iterable[str] = ()
) -> list[Sql]:
    """SQL conditions on a row `j` of jobs, except for the members in `without`."""
    found: list[Sql] = []
    for name, value in filter.values.items():
        if name not in without:
            found += _member(name, value)
    if pending_deletion.queues:
        found.append(
            (
                f"j.queue_number NOT IN ({_marks(pending_deletion.queues)})",
                [*pending_deletion.queues],
            )
        )
    for number, seq in pending_deletion.cleared:
        text = "NOT (j.queue_number = ? AND j.state IN ('pending', 'scheduled')"
        found.append((text + " AND j.event_seq <= ?)", [number, seq]))
    return found


def _member(name: str, value: Any) -> list[Sql]:
    if name in _COMPARED:
        return [(_COMPARED[name], [value])]
    if name in _INDEXED:
        return [(f"j.{name} = ?", [value])]
    if name == "queue":
        return [("j.queue GLOB ?", [_glob(value)]) if "*" in value else ("j.queue = ?", [value])]
    if name == "state":
        return [(f"j.state IN ({_marks(value)})", [*value])]
    if name == "tags":
        return [(_HAS_TAG, [key, item]) for key, item in value.items()]
    if name == "payload_contains":
        return [contains(PAYLOAD, "j.payload_text", value)]
    if name == "error_contains":
        matches_, values = contains("e.error", "e.error", value)
        text = f"SELECT 1 FROM job_errors e WHERE e.number = j.number AND {matches_}"
        return [(f"j.error_count > 0 AND EXISTS ({text})", values)]
    if name == "has_errors":
        return [("j.error_count > 0" if value else "j.error_count = 0", [])]
    if name == "job_id_prefix":
        return [("j.id >= ? AND j.id < ?", [value, value + _LAST])]
    assert name == "payload_jq", name
    return [_jq(condition) for condition in value]


def _marks(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)


def contains(column: str, decoded: str, text: str) -> Sql:
    """A condition that a column contains a text, in any case of ASCII letters.

    LIKE is the fastest way but stops at a NUL; only the column `decoded` can contain one."""
    whole = f"instr(lower({decoded}), lower(?)) > 0"
    if "\0" in text:
        return f"IFNULL({whole}, 0)", [text]
    beyond = f"{decoded} IS NOT NULL AND instr({decoded}, char(0)) > 0 AND {whole}"
    return rf"({column} LIKE ? ESCAPE '\' OR {beyond})", [like(text), text]


def like(text: str) -> str:
    """A LIKE pattern for texts that contain this text."""
    for mark in "\\%_":
        text = text.replace(mark, "\\" + mark)
    return f"%{text}%"


def _glob(text: str) -> str:
    return text.replace("[", "[[]").replace("?", "[?]")


_TYPES: Final[dict[type, str]] = {
    bool: "'true', 'false'",
    int: "'integer', 'real'",
    float: "'integer', 'real'",
    str: "'text'",
}


def _jq(condition: Condition) -> Sql:
    path = "$" + "".join(
        f"[{part}]" if isinstance(part, int) else f'."{part}"' for part in condition.path
    )
    literal = condition.literal
    if isinstance(literal, int) and abs(literal) >= _I64:
        literal = float(literal)
    type_, value = f"json_type({_VALUE}, ?)", f"json_extract({_VALUE}, ?)"
    op = condition.op
    if condition.test == "startswith":
        return f"({type_} = 'text' AND instr({value}, ?) = 1)", [path, path, literal]
    if condition.test == "contains":
        elements = f"SELECT 1 FROM json_each({_VALUE}, ?) WHERE type = 'text' AND value = ?"
        text = f"CASE {type_} WHEN 'text' THEN instr({value}, ?) > 0"
        text += f" WHEN 'array' THEN EXISTS ({elements}) ELSE 0 END"
        return text, [path, path, literal, path, literal]
    if condition.test == "length":
        count = f"SELECT count(*) FROM json_each({_VALUE}, ?)"
        text = f"CASE IFNULL({type_}, 'null') WHEN 'null' THEN 0 WHEN 'text' THEN length({value})"
        text += f" WHEN 'array' THEN json_array_length({_VALUE}, ?) WHEN 'object' THEN ({count})"
        return f"IFNULL({text} ELSE NULL END {op} ?, 0)", [path, path, path, path, literal]
    if literal is None:
        return f"IFNULL({type_}, 'null') {op} 'null'", [path]
    same = f"{type_} IN ({_TYPES[type(literal)]}) AND {value}"
    if op == "!=":
        return f"NOT IFNULL({same} = ?, 0)", [path, path, literal]
    return f"({same} {op} ?)", [path, path, literal]


# ---- pages ----


def page(
    filter: Filter,
    pending_deletion: PendingDeletions,
    order: Order,
    after: tuple[int, str] | None,
    limit: int,
    numbers: list[int] | None,
    uncounted_tag: str | None,
) -> Sql:
    """SQL for (number, sorted, id) of a page.

    `numbers` are all rows that can match, if they are few; `uncounted_tag` is a tag of the filter
    without facet sets."""
    beyond: list[Sql] = []  # condition: after the cursor
    if after is not None:
        sign = "<" if order.descending else ">"
        beyond.append((f"({order.column}, j.id) {sign} (?, ?)", [*after]))
    if numbers is not None:
        source = "json_each(?) n CROSS JOIN jobs j ON j.number = n.value"
        rest = conditions(filter, pending_deletion) + beyond
        return _select(source, [json.dumps(numbers)], rest, order, limit)
    named = next((name for name in _INDEXED if filter.get(name) is not None), None)
    if named is not None:
        rest = conditions(filter, pending_deletion) + beyond
        return _select(f"jobs j INDEXED BY jobs_{named}", [], rest, order, limit)
    if uncounted_tag is not None:
        source = f"({_TAGGED}) n CROSS JOIN jobs j ON j.number = n.number"
        params = [uncounted_tag, filter.get("tags")[uncounted_tag]]
        return _select(source, params, conditions(filter, pending_deletion) + beyond, order, limit)
    if order.sort != "created_at":
        return _select("jobs j", [], conditions(filter, pending_deletion) + beyond, order, limit)
    return _walk(filter, pending_deletion, order, beyond, limit)


def _walk(
    filter: Filter, pending_deletion: PendingDeletions, order: Order, beyond: list[Sql], limit: int
) -> Sql:
    queue = filter.get("queue")
    exact = queue is not None and "*" not in queue
    states = filter.get("state") or (STATES if exact else None)
    if states is None:
        rest = conditions(filter, pending_deletion) + beyond
        return _select("jobs j INDEXED BY jobs_created", [], rest, order, limit)
    rest = conditions(filter, pending_deletion, ("state",)) + beyond
    index = "jobs_queue" if exact else "jobs_state"
    parts = [
        _select(f"jobs j INDEXED BY {index}", [], [("j.state = ?", [state]), *rest], order, limit)
        for state in states
    ]
    if len(parts) == 1:
        return parts[0]
    text = " UNION ALL ".join(f"SELECT * FROM ({part})" for part, _ in parts)
    params = [value for _, values in parts for value in values]
    return f"SELECT * FROM ({text}) {order.clause} LIMIT ?", [*params, limit]


def _select(source: str, params: list[Any], rest: list[Sql], order: Order, limit: int) -> Sql:
    text = f"SELECT j.number AS number, {order.column} AS sorted, j.id AS id FROM {source}"
    values = list(params)
    if rest:
        text += " WHERE " + " AND ".join(condition for condition, _ in rest)
        values += [value for _, more in rest for value in more]
    return f"{text} {order.clause} LIMIT ?", [*values, limit]


def matching_ids(
    filter: Filter, pending_deletion: PendingDeletions, limit: int, numbers: list[int]
) -> Sql:
    """SQL for (number, id) of the first matches among `numbers`, in row order."""
    return matches(filter, pending_deletion, "j.number, j.id", limit, numbers, "ORDER BY j.number")


def matches(
    filter: Filter,
    pending_deletion: PendingDeletions,
    columns: str,
    limit: int,
    numbers: list[int] | None,
    order: str = "",
) -> Sql:
    """SQL for columns of the first matching rows.

    `numbers` are all rows that can match, or None if they are too many to be listed."""
    source = "jobs j"
    values: list[Any] = []
    if numbers is not None:
        source = "json_each(?) n CROSS JOIN jobs j ON j.number = n.value"
        values = [json.dumps(numbers)]
    rest = conditions(filter, pending_deletion)
    text = f"SELECT {columns} FROM {source}"
    if rest:
        text += " WHERE " + " AND ".join(condition for condition, _ in rest)
    return f"{text} {order} LIMIT ?", [
        *values,
        *(value for _, more in rest for value in more),
        limit,
    ]
