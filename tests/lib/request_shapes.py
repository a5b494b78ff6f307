"""Large inputs of every shape, made from the description of a body: what costs more than it weighs.

A node describes what a body may hold. The nodes of the HTTP API are read from the Structs that its
routes decode, those of the worker service from its messages, so a new field is covered without a
row here.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, product
from typing import Any, Final

import msgspec

from corvo._fast.codec import protobuf
from corvo._fast.codec.protobuf import Message
from corvo.mirror.filters import PARSERS
from corvo.net.rpc.proto_file import TIMESTAMP

Shape = Callable[[int], bytes]
Shapes = dict[str, Shape]


def repeated(piece: bytes, size: int) -> bytes:
    return piece * max(1, size // len(piece))


def _text(piece: bytes) -> Shape:
    return lambda size: b'"' + repeated(piece, size) + b'"'


def _halves() -> list[bytes]:
    """Escapes of lone surrogates in all spellings, the low ones first, so that none is a pair."""
    forms = []
    for first, rest in product(("cdef", "89ab"), product("dD", "0123456789abcdefABCDEF")):
        for second in first:
            for spelled in {second, second.upper()}:
                forms.append(rf"\u{rest[0]}{spelled}{rest[1]}{rest[1]}".encode())
                forms.append(rf"\u{rest[0]}{spelled}{rest[1]}0".encode())
    return forms


_HALVES: Final = _halves()


def halves(size: int) -> bytes:
    """Bytes of escapes, as many different ones as there is room for."""
    whole, rest = divmod(max(1, size // 6), len(_HALVES))
    return b"".join(_HALVES * whole + _HALVES[:rest])


TEXTS: Final[Shapes] = {
    "letters": _text(b"a"),
    "digits": _text(b"1"),
    "blanks": _text(b" "),
    "punctuation": _text(b",:/.-+=*"),
    "lists with commas": _text(b"a,"),
    "segments": _text(b"/a"),
    "points": _text(b".a"),
    "indexes": _text(b"[0]"),
    "brackets": _text(b"[({"),
    "units": _text(b"1h"),
    "fractions": _text(b"1.5s"),
    "fields of cron": _text(b"* "),
    "lists of cron": _text(b"1-2,"),
    "steps of cron": _text(b"*/"),
    "percent escapes": _text(b"%41"),
    "escaped quotes": _text(rb"\""),
    "escaped backslashes": _text(rb"\\"),
    "short escapes": _text(rb"\n"),
    "escaped letters": _text(rb"\u0061"),
    "escaped capitals": _text(rb"\u00C9"),
    "escaped controls": _text(rb"\u0000"),
    "pairs": _text(rb"\ud83d\ude00"),
    "halves": lambda size: b'"' + halves(size) + b'"',
    "the same half": _text(rb"\ud800"),
    "halves and private": _text(rb"\udc00\ue800\ue000"),
    "two bytes": _text("é".encode()),
    "three bytes": _text("€".encode()),
    "four bytes": _text("😀".encode()),
    "combining": _text("́".encode()),
}
NUMBERS: Final[Shapes] = {
    "long number": lambda size: repeated(b"1", size),
    "long negative": lambda size: b"-" + repeated(b"9", size),
    "long fraction": lambda size: b"0." + repeated(b"3", size),
    "long zeros": lambda size: b"0." + repeated(b"0", size) + b"1",
    "long exponent": lambda size: b"1e" + repeated(b"9", size),
    "small exponent": lambda size: b"1e-" + repeated(b"9", size),
    "large fraction": lambda size: (
        b"1" + repeated(b"0", size // 2) + b"." + repeated(b"1", size // 2)
    ),
}


def _listed(item: Callable[[int], bytes], size: int) -> bytes:
    step = len(item(0)) + 1
    return b",".join(item(number) for number in range(max(1, size // (step + 5))))


CONTAINERS: Final[Shapes] = {
    "deep lists": lambda size: repeated(b"[", size // 2) + repeated(b"]", size // 2),
    "deep objects": lambda size: (
        repeated(b'{"a":', size * 5 // 6) + b"1" + repeated(b"}", size // 6)
    ),
    "lists of some depth": lambda size: b"[" + repeated(b"[" * 50 + b"]" * 50 + b",", size) + b"1]",
    "numbers": lambda size: b"[" + _listed(lambda n: b"%d" % n, size) + b"]",
    "texts": lambda size: b"[" + _listed(lambda n: b'"a%d"' % n, size) + b"]",
    "the same text": lambda size: b"[" + _listed(lambda _: b'"a"', size) + b"]",
    "empty objects": lambda size: b"[" + repeated(b"{},", size) + b"{}]",
    "empty lists": lambda size: b"[" + repeated(b"[],", size) + b"[]]",
    "members": lambda size: b"{" + _listed(lambda n: b'"a%d":1' % n, size) + b"}",
    "the same member": lambda size: b"{" + _listed(lambda _: b'"a":1', size) + b"}",
    "members with halves": lambda size: b"{" + _listed(_half_member, size) + b"}",
    "many lists with halves": lambda size: b"[" + _listed(_half_item, size) + b"]",
}


def _half_member(number: int) -> bytes:
    return b'"%b%d":1' % (_HALVES[number % len(_HALVES)], number)


def _half_item(number: int) -> bytes:
    return b'["%b"]' % _HALVES[number % len(_HALVES)]


ANY: Final[Shapes] = TEXTS | NUMBERS | CONTAINERS


# ---- what a body may hold ----


@dataclass(frozen=True)
class Node:
    """`kind` is text, number, any, json (a text that holds JSON), list, map or object."""

    kind: str
    item: "Node | None" = None
    members: "dict[str, Node]" = field(default_factory=dict)
    strict: bool = True  # an unknown member is an error


TEXT, NUMBER, ANYTHING, JSON = Node("text"), Node("number"), Node("any"), Node("json")

# Members that a handler looks at first, with values that lead on to the others.
USUAL: Final[dict[str, Any]] = {
    "queue": "q",
    "queues": ["q"],
    "timeout": 0,
    "cron": "0 0 1 1 *",
    "name": "s",
    "action": "cancel",
    "job_ids": ["job_none"],
    "steps": [{"queue": "q"}, {"queue": "q"}],
    "jobs": [{"queue": "q"}],
    "message": "m",
    "node_id": "n",
    "addr": "a",
    "http_addr": "a",
    "cluster_id": "c",
    "proof": "p",
    "unique_key": "k",
    "payload_json": "1",
    "error": "e",
}


def of_struct(kind: Any) -> Node:
    """The node of a Struct, or of the JSON object of a route that checks it by itself."""
    if kind == dict[str, msgspec.Raw]:
        names = [*PARSERS, "sort", "order", "cursor", "limit", "by"]
        members = dict.fromkeys(names, ANYTHING)
        return Node("object", members=members | {"filter": Node("object", members=members)})
    return _of_type(msgspec.inspect.type_info(kind), "")


def _of_type(info: Any, name: str) -> Node:
    match info:
        case msgspec.inspect.StructType():
            members = {f.encode_name: _of_type(f.type, f.encode_name) for f in info.fields}
            return Node("object", members=members)
        case msgspec.inspect.UnionType():
            found = [_of_type(part, name) for part in info.types]
            useful = [node for node in found if node.kind != "none"]
            return next((n for n in useful if n.kind == "text"), useful[0] if useful else found[0])
        case msgspec.inspect.StrType():
            return TEXT
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return NUMBER
        case msgspec.inspect.ListType():
            return Node("list", _of_type(info.item_type, name))
        case msgspec.inspect.DictType():
            if name == "filter":
                return of_struct(dict[str, msgspec.Raw])
            return Node("map", _of_type(info.value_type, name))
        case msgspec.inspect.RawType() | msgspec.inspect.AnyType():
            return ANYTHING
    return Node("none")


def of_message(message: Message) -> Node:
    """The node of the JSON form of a message."""
    if message.name == TIMESTAMP:
        return TEXT
    members = {}
    for row in message.fields:
        node = NUMBER
        if row.is_map:
            assert row.message is not None and row.message.fields[1].message is not None
            node = Node("map", of_message(row.message.fields[1].message))
        elif row.message is not None:
            node = of_message(row.message)
        elif row.kind == protobuf.STRING:
            node = JSON if row.name.endswith("_json") else TEXT
        members[row.name] = Node("list", node) if row.repeated and not row.is_map else node
    return Node("object", members=members, strict=False)


def small(node: Node, number: int = 0, name: str = "") -> bytes:
    """A short value; different for each number where that is possible."""
    if name in USUAL and number == 0:
        return json.dumps(USUAL[name]).encode()
    match node.kind:
        case "text":
            return b'"job_%d"' % number
        case "json":
            return b'"{}"'
        case "list":
            assert node.item is not None
            return b"[%b]" % small(node.item)
        case "map":
            assert node.item is not None
            return b'{"job_%d":%b}' % (number, small(node.item))
        case "object":
            return _object(node, {})
    return b"%d" % (number % 3)


def _object(node: Node, more: dict[str, bytes]) -> bytes:
    """An object with its usual members, and more."""
    members = {n: json.dumps(v).encode() for n, v in USUAL.items() if n in node.members}
    parts = [b'"%b":%b' % (n.encode(), v) for n, v in (members | more).items()]
    return b"{" + b",".join(parts) + b"}"


# ---- large values of a node ----


def values(node: Node, depth: int = 0) -> Iterator[tuple[str, Shape]]:
    """All large values of a node, by name."""
    match node.kind:
        case "text":
            yield from TEXTS.items()
            yield from islice(NUMBERS.items(), 3)
        case "number":
            yield from NUMBERS.items()
            yield "digits", TEXTS["digits"]
        case "any":
            yield from ANY.items()
        case "json":
            yield from ((name, _in_text(shape)) for name, shape in ANY.items())
        case "list":
            yield from _lists(node, depth)
        case "map":
            yield from _maps(node, depth)
        case "object":
            yield from _objects(node, depth)


def _in_text(shape: Shape) -> Shape:
    def build(size: int) -> bytes:
        return json.dumps(shape(size * 3 // 4).decode(), ensure_ascii=False).encode()

    return build


def _lists(node: Node, depth: int) -> Iterator[tuple[str, Shape]]:
    item = node.item
    assert item is not None
    yield "many", lambda size: b"[" + _listed(lambda n: small(item, n + 1), size) + b"]"
    yield "the same", lambda size: b"[" + _listed(lambda _: small(item), size) + b"]"
    if item.kind == "object":
        whole = _object(item, {n: small(m, 0, n) for n, m in item.members.items()})
        yield "rich items", lambda size: b"[" + _listed(lambda _: whole, size) + b"]"
        yield "empty items", CONTAINERS["empty objects"]
    for name, shape in values(item, depth + 1):
        yield f"one: {name}", _wrapped(b"[%b]", shape)


def _maps(node: Node, depth: int) -> Iterator[tuple[str, Shape]]:
    item = node.item
    assert item is not None
    entry = small(item)
    yield "members", lambda size: b"{" + _listed(lambda n: b'"job_%d":%b' % (n, entry), size) + b"}"
    yield "the same member", lambda size: b"{" + _listed(lambda _: b'"a":%b' % entry, size) + b"}"
    for name in ("letters", "escaped letters", "halves", "four bytes"):
        text = TEXTS[name]
        yield f"name of {name}", _wrapped(b"{%%b:%b}" % entry.replace(b"%", b"%%"), text)
    for name, shape in values(item, depth + 1):
        yield f"one: {name}", _wrapped(b'{"job_1":%b}', shape)


def _objects(node: Node, depth: int) -> Iterator[tuple[str, Shape]]:
    usual = _object(node, {})[1:-1]
    lead = b"{" + usual.replace(b"%", b"%%") + (b"," if usual else b"")
    for name in ("letters", "punctuation", "escaped letters", "escaped quotes", "halves", "pairs"):
        yield f"unknown {name}", _wrapped(lead + b"%b:1}", TEXTS[name])
    yield "unknown members", lambda size: lead + _listed(lambda n: b'"a%d":1' % n, size) + b"}"
    for name, member in node.members.items():
        for label, shape in values(member, depth + 1):
            yield f"{name}: {label}", _member(node, name, shape)


def _member(node: Node, name: str, shape: Shape) -> Shape:
    return lambda size: _object(node, {name: shape(size)})


def _wrapped(frame: bytes, shape: Shape) -> Shape:
    return lambda size: frame % shape(size)


def bodies(node: Node | None) -> Iterator[tuple[str, Shape]]:
    """All large bodies: those of the node, and any JSON, whole and broken."""
    yield from ((f"body: {name}", shape) for name, shape in ANY.items())
    yield "blank", lambda size: b" " * size
    yield "blanks around", lambda size: b" " * (size // 2) + b"{}" + b" " * (size // 2)
    yield "cut off", lambda size: b'{"queue":"' + b"a" * size
    yield "open lists", lambda size: b"[" * size
    yield "not UTF-8 at the end", lambda size: b'{"queue":"' + b"a" * size + b'\xff"}'
    yield "no JSON", lambda size: bytes(range(256)) * (size // 256)
    if node is not None:
        yield from values(node)


# ---- the binary form of messages ----


def binary(message: Message) -> Iterator[tuple[str, Shape]]:
    """Large messages as bytes: long values, many elements, parts and unknown fields."""
    unknown = protobuf.encode_varint(777 << 3 | 2)
    yield "unknown fields", lambda size: repeated(unknown + b"\1a", size)
    yield "unknown numbers", lambda size: repeated(protobuf.encode_varint(777 << 3) + b"\1", size)
    yield "long unknown", lambda size: unknown + protobuf.encode_varint(size) + b"a" * size
    yield "groups", lambda size: repeated(protobuf.encode_varint(777 << 3 | 3), size)
    for row in message.fields:
        if row.wire == 2:
            for piece in (b"a", b"1", b"[", "é".encode(), rb"\u0061", b" "):
                yield f"{row.name}: {piece!r}", _sized(row.tag, piece)
            for count, part in ((1, b""), (2, b"\x0a\x00"), (3, b"\x0a\x01q")):
                entry = row.tag + protobuf.encode_varint(len(part)) + part
                yield f"{row.name}: {count} parts", _repeat(entry)
        else:
            yield f"{row.name}: again", _repeat(row.tag + b"\1" * (8 if row.wire == 1 else 1))


def _sized(tag: bytes, piece: bytes) -> Shape:
    def build(size: int) -> bytes:
        text = repeated(piece, size)
        return tag + protobuf.encode_varint(len(text)) + text

    return build


def _repeat(piece: bytes) -> Shape:
    return lambda size: repeated(piece, size)


# ---- targets and heads ----

PIECES: Final = (
    b"a",
    b"1",
    b"-",
    b".",
    b",",
    b"%41",
    b"%C3%A9",
    b"%F0%9F%98%80",
    b"%00",
    b"1h",
    b"%25",
)


def targets(
    pattern: str, parameters: dict[str, str], queries: list[str]
) -> Iterator[tuple[str, Shape]]:
    """Long paths and queries of a route; `parameters` are the values that exist."""
    path = pattern
    for name, value in parameters.items():
        path = path.replace("{" + name + "}", value)
    base = path.encode()
    for piece in PIECES:
        if "{" in pattern:
            head, rest = pattern[: pattern.index("{")], pattern[pattern.index("}") + 1 :]
            for name, value in parameters.items():
                rest = rest.replace("{" + name + "}", value)
            frame = head.encode() + b"%b" + rest.encode()
            yield f"segment of {piece!r}", _wrapped(frame, _repeat(piece))
        yield f"unknown parameter {piece!r}", _wrapped(base + b"?%b=1", _repeat(piece))
        for query in queries:
            yield (
                f"{query} of {piece!r}",
                _wrapped(base + b"?%b=%%b" % query.encode(), _repeat(piece)),
            )
    for piece in (b"a&", b"a=1&", b"&", b"=", b"a=%41&", b";", b"+"):
        yield f"query of {piece!r}", _wrapped(base + b"?%b", _repeat(piece))
    yield "segments", _wrapped(base + b"%b", _repeat(b"/a"))
    yield "empty segments", _wrapped(base + b"%b", _repeat(b"/"))


HEADERS: Final = (
    *("accept", "accept-encoding", "accept-language", "authorization", "cache-control", "cookie"),
    *("content-type", "content-encoding", "content-length", "expect", "forwarded", "host"),
    *("idempotency-key", "if-match", "if-none-match", "origin", "range", "referer", "te"),
    *("sec-fetch-site", "traceparent", "tracestate", "transfer-encoding", "upgrade", "user-agent"),
    *("x-api-key", "x-corvo-min-index", "x-corvo-namespace", "x-forwarded-for", "x-request-id"),
    *("x-corvo-forwarded", "connection", "trailer", "http2-settings", "via", "x-unknown"),
)
_HEADER_PIECES: Final = (
    b"a",
    b"1",
    b",",
    b", a;q=0.1",
    b"=",
    b";",
    b'"',
    b"\\",
    b"a=1; ",
    b"-",
    b" ",
)


def heads(names: list[str]) -> Iterator[tuple[str, Shape]]:
    """Large lines of a head."""
    for name, piece in chain(product(names, _HEADER_PIECES)):
        yield f"{name}: {piece!r}", _wrapped(name.encode() + b": %b\r\n", _repeat(piece))
    yield (
        "many fields",
        lambda size: b"".join(b"x-%d: a\r\n" % n for n in range(min(99, size // 9))),
    )
    yield "a long name", _wrapped(b"%b: a\r\n", _repeat(b"a"))
