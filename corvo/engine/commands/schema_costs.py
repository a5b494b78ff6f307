"""The cost of a result schema: a bound on the work of its validation.

A schema is a graph of parts. An applicator leads from a part to another one: in place, for the same
value (`allOf`, `$ref`), or one step down, for the members of the value (`properties`, `items`). The
cost of a schema bounds the simple checks that one value of a result can get, wherever it is in the
result. So the values of a result times the cost bound the validation.

Without recursion the cost is the sum over all parts, with references expanded. Recursion keeps that
bound if it has one way to each value: the parts of a cycle then count once. Two ways double the
work at each level of a result, so such a schema is refused, and so is a cycle without a step down.

The library evaluates the applicators of a part again for its `unevaluatedItems` and
`unevaluatedProperties`, so they count several times.
"""

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from corvo import limits
from corvo.errors import ValidationError
from corvo.platform.echoes import shown

IN_PLACE: Final = 0
MEMBER: Final = 1  # a member of an object
ITEM: Final = 2
NAME: Final = 3  # the name of a member
_ANY: Final = "*any"
_REST: Final = "*rest"  # members that no other keyword of the part applies to
# Keywords that apply parts: the kind of step, and the members that they apply to.
_LISTS: Final = {"allOf": IN_PLACE, "anyOf": IN_PLACE, "oneOf": IN_PLACE, "prefixItems": ITEM}
_MAPS: Final = {
    "properties": MEMBER,
    "patternProperties": MEMBER,
    "dependentSchemas": IN_PLACE,
    "dependencies": IN_PLACE,
}
_SINGLE: Final = {
    "not": (IN_PLACE, _ANY),
    "if": (IN_PLACE, _ANY),
    "then": (IN_PLACE, _ANY),
    "else": (IN_PLACE, _ANY),
    "contains": (ITEM, _ANY),
    "items": (ITEM, _REST),
    "unevaluatedItems": (ITEM, _REST),
    "additionalProperties": (MEMBER, _REST),
    "unevaluatedProperties": (MEMBER, _REST),
    "propertyNames": (NAME, _ANY),
}
UNEVALUATED: Final = ("unevaluatedItems", "unevaluatedProperties")
_UNEVALUATED_TIMES: Final = 4  # evaluations of an applicator in a part with such a keyword
# Costs of keywords themselves. The time of some depends on the length of a text, so that each
# TEXT_UNIT of a result counts as a value, too.
TEXT_UNIT: Final = 64
_COSTS: Final = {
    "propertyNames": 8,
    "format": 8,
    "unevaluatedItems": 16,
    "unevaluatedProperties": 16,
}
_UNIQUE_COST: Final = 32
_UNIQUE_RECURSIVE_TIMES: Final = 8  # a level of a result is hashed with all levels below
_FRACTION_COST: Final = 64  # of a multipleOf that is not an integer
_PATTERN_COST: Final = 8
_POSITION_COST: Final = 10  # of each position of a pattern that can be active with others
_STEADY: Final = re.compile(r"\^([^*+?|]*?[^*+?|)])?(?:[*+?]|\{\d+,\d*\})?\$?", re.DOTALL)
_OPEN_COUNT: Final = re.compile(r"\{\d+,\d*\}")
_COUNT: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_LONG_ESCAPE: Final = re.compile(r"\\[pPxuU]\{[^}]*\}")
_GROUP_START: Final = re.compile(r"\((?:\?(?::|P?<\w+>|[ims]*:|[ims]+\)))?")
_CLASS: Final = re.compile(r"\[(?!\^?\])(?:\\.|[^\]\[\\])*\]", re.DOTALL)
_POSITIONS_MAX: Final = limits.RESULT_SCHEMA_COST_MAX
# Keywords that the library copies into each of its errors.
_COPIED: Final = ("const", "enum", "not", "pattern", "format", "dependentRequired")

_DEPTH_MAX: Final = 250  # of parts, with references expanded
# Parts of a cycle that apply to the same value one inside the other. The library uses its stack for
# each of them at each level of a result.
_CHAIN_MAX: Final = 32
# Keywords whose errors hold the errors of the parts that they apply.
_LISTING: Final = ("anyOf", "oneOf", "propertyNames")

Edge = tuple[Any, int, str, int]  # part, kind of step, member, evaluations
Ways = dict[tuple[int, str], int]


class Measure:
    """The cost of one part, final when its cycle is complete."""

    __slots__ = ("cost", "edges", "low", "on_stack", "order", "part", "parts", "recursive")

    def __init__(self, part: Any, order: int) -> None:
        self.part = part
        self.order = order
        self.low = order
        self.on_stack = True
        self.parts = 0
        self.cost = 0
        self.recursive = False  # it is in a cycle or leads to one
        self.edges: list[tuple[Measure, int, str, int]] = []


class Schema:
    """A measured schema: `parts`, `cost`, `depth` of parts, number of `patterns`, and `copied`, the
    length of the longest value that an error repeats. Raises ValidationError when it has no bound.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._found: dict[int, Measure] = {}
        self._open: list[Measure] = []
        self.patterns = 0
        self.copied = 0
        self.unevaluated = False
        self.depth = 0
        root = self._measure(schema, 0)
        self.parts = root.parts
        self.cost = max(1, root.cost)
        self.recursive = root.recursive

    def all_parts(self) -> list[dict[str, Any]]:
        return [measure.part for measure in self._found.values()]

    def _measure(self, part: Any, depth: int) -> Measure:
        """Tarjan's algorithm: a part is measured after everything that it leads to, and the parts
        of a cycle together."""
        if not isinstance(part, dict):
            leaf = Measure(part, 0)
            leaf.on_stack = False
            leaf.parts = leaf.cost = 1
            return leaf
        known = self._found.get(id(part))
        if known is not None:
            return known
        own = self._found[id(part)] = Measure(part, len(self._found) + 1)
        if len(self._found) > limits.RESULT_SCHEMA_PARTS_MAX:
            raise too_many_parts()
        if depth > _DEPTH_MAX:
            raise refused("nested too deeply, with references expanded")
        self.depth = max(self.depth, depth)
        self._open.append(own)
        self._note(part)
        for target, kind, member, times in self._edges(part):
            to = self._measure(target, depth + 1)
            if to.on_stack:
                own.low = min(own.low, to.low)
            own.edges.append((to, kind, member, times))
        if own.low == own.order:
            at = self._open.index(own)
            cycle = self._open[at:]
            del self._open[at:]
            _close(cycle)
        return own

    def _note(self, part: dict[str, Any]) -> None:
        if part is not self._schema:
            for name in ("$id", "$schema"):
                if isinstance(part.get(name), str):
                    raise refused(f"{name} is possible at its top only")
        for name in ("$dynamicRef", "$recursiveRef"):
            if isinstance(part.get(name), str):
                raise refused(f"{name} is not possible here, use $ref")
        if "pattern" in part:
            self.patterns += 1
        named = part.get("patternProperties")
        if isinstance(named, dict):
            self.patterns += len(named)
        for name in _COPIED:
            if name in part:
                self.copied = max(self.copied, len(repr(part[name])))
        if any(name in part for name in UNEVALUATED):
            self.unevaluated = True

    def _edges(self, part: dict[str, Any]) -> Iterator[Edge]:
        again = _UNEVALUATED_TIMES if any(name in part for name in UNEVALUATED) else 1
        reference = part.get("$ref")
        if isinstance(reference, str):
            yield _at(self._schema, reference), IN_PLACE, _ANY, again
        for sub, kind, member in applied(part):
            times = again if kind == IN_PLACE or (kind, member) == (ITEM, _ANY) else 1
            yield sub, kind, member, times


def without_inner_errors(schema: Any) -> Any:
    """The schema, changed to an equivalent whose errors hold no others: each keyword that lists
    them is negated twice. `unevaluated...` keywords do not see through a negation."""
    for part in Schema(schema).all_parts():
        hidden = [{"not": {"not": {name: part.pop(name)}}} for name in _LISTING if name in part]
        if hidden:
            part["allOf"] = [*part.get("allOf", ()), *hidden]
    return schema


def hidden_keyword(schema: Any) -> str:
    """The keyword that is negated twice in a part, or nothing."""
    inner = schema.get("not") if isinstance(schema, dict) else None
    if isinstance(inner, dict) and len(inner) == 1:
        [name] = inner
        return name if name in _LISTING else ""
    return ""


def applied(part: dict[str, Any]) -> Iterator[tuple[Any, int, str]]:
    """The parts that a part applies: the part, the kind of step, and the member."""
    for name, value in part.items():
        if name in _SINGLE:
            kind, member = _SINGLE[name]
            yield value, kind, member
        elif name in _LISTS and isinstance(value, list):
            for at, sub in enumerate(value):
                yield sub, _LISTS[name], str(at)
        elif name in _MAPS and isinstance(value, dict):
            for member, sub in value.items():
                if isinstance(sub, dict | bool):
                    any_member = name == "patternProperties"
                    yield sub, _MAPS[name], _ANY if any_member else "=" + member


def _close(cycle: list[Measure]) -> None:
    """Computes the cost of parts that lead to each other, or of one part."""
    inside = set(map(id, cycle))
    cyclic = len(cycle) > 1 or any(id(to) in inside for to, _, _, _ in cycle[0].edges)
    parts = cost = 0
    for own in cycle:
        own.on_stack = False
        parts += 1
        cost += _cost(own.part, cyclic)
        for to, _, _, times in own.edges:
            if id(to) not in inside:
                parts += to.parts
                cost += to.cost * times
                own.recursive = own.recursive or to.recursive
    for own in cycle:
        own.parts = min(parts, limits.RESULT_SCHEMA_PARTS_MAX + 1)
        own.cost = min(cost, limits.RESULT_CHECKS_MAX)
        own.recursive = own.recursive or cyclic
    if parts > limits.RESULT_SCHEMA_PARTS_MAX:
        raise too_many_parts()
    if cyclic:
        _check_one_way(cycle, inside)


def _check_one_way(cycle: list[Measure], inside: set[int]) -> None:
    """Raises ValidationError when recursion leads to the same value in more than one way."""
    closures: dict[int, tuple[Ways, Ways, int]] = {}
    pending: set[int] = set()

    def closure(own: Measure) -> tuple[Ways, Ways, int]:
        """Ways into the cycle, and into any recursion, by the member that they lead to, and the
        longest chain of parts for the same value."""
        known = closures.get(id(own))
        if known is not None:
            return known
        if id(own) in pending:
            raise refused("its recursion has a cycle without a step into a value")
        pending.add(id(own))
        here, anywhere, chain = _steps(own, inside), _steps(own, None), 1
        for to, kind, _, times in own.edges:
            if kind == IN_PLACE and to.recursive:
                more_here, more_anywhere, more_chain = closure(to)
                _add(here, more_here, times)
                _add(anywhere, more_anywhere, times)
                chain = max(chain, 1 + more_chain)
        if chain > _CHAIN_MAX:
            raise refused(f"its recursion nests more than {_CHAIN_MAX} parts for one value")
        for step in here.keys() | anywhere.keys():
            if _count(here, step) >= 1 and _count(anywhere, step) > 1:
                raise refused("its recursion leads to the same value in more than one way")
        closures[id(own)] = here, anywhere, chain
        return closures[id(own)]

    for own in cycle:
        closure(own)


def _steps(own: Measure, inside: set[int] | None) -> Ways:
    """The steps of one part down into a cycle, or into any recursion: those by name, by no name
    (`*any`), and the way of any other member (`*any` of the result)."""
    always: Ways = {}
    named: Ways = {}
    rest: Ways = {}
    for to, kind, member, times in own.edges:
        if kind == IN_PLACE:
            continue
        counts = to.recursive if inside is None else id(to) in inside
        if member == _ANY:
            always[kind, _ANY] = always.get((kind, _ANY), 0) + times * counts
        elif member == _REST:
            rest[kind, _ANY] = max(rest.get((kind, _ANY), 0), times * counts)
        else:
            named[kind, member] = times * counts
    found: Ways = {}
    for kind in (MEMBER, ITEM, NAME):
        found[kind, _ANY] = always.get((kind, _ANY), 0) + rest.get((kind, _ANY), 0)
    for step, times in named.items():
        found[step] = times + always.get((step[0], _ANY), 0)
    return found


def _count(ways: Ways, step: tuple[int, str]) -> int:
    return ways.get(step, ways.get((step[0], _ANY), 0))


def _add(total: Ways, more: Ways, times: int) -> None:
    sums = {
        step: _count(total, step) + times * _count(more, step)
        for step in total.keys() | more.keys()
    }
    total.update(sums)


def _cost(part: dict[str, Any], cyclic: bool) -> int:
    """The cost of a part without the parts that it applies."""
    cost = 1
    for name, value in part.items():
        if name in _COSTS:
            cost += _COSTS[name]
        elif name == "uniqueItems":
            cost += _UNIQUE_COST * (_UNIQUE_RECURSIVE_TIMES if cyclic else 1)
        elif name == "multipleOf" and not isinstance(value, int):
            cost += _FRACTION_COST
        elif name == "enum" and isinstance(value, list):
            cost += len(value) // 8
        elif name == "required" and isinstance(value, list):
            cost += len(value)
        elif name in ("dependentRequired", "dependencies") and isinstance(value, dict):
            cost += sum(1 + len(names) for names in value.values() if isinstance(names, list))
        elif name == "pattern" and isinstance(value, str):
            cost += _pattern_cost(value)
        elif name == "patternProperties" and isinstance(value, dict):
            cost += sum(map(_pattern_cost, value))
    return cost


def _pattern_cost(pattern: str) -> int:
    """The cost of a pattern per TEXT_UNIT. An engine in linear time spends on each character up to
    the number of positions that are active at the same time. Only one is active in an anchored
    pattern without choices, except for a repetition of one character at its end."""
    positions = _positions(pattern)
    steady = _STEADY.fullmatch(pattern)
    if steady and not _OPEN_COUNT.search(steady[1] or ""):
        return _PATTERN_COST + positions
    return _PATTERN_COST + _POSITION_COST * positions


def _positions(pattern: str) -> int:
    """A bound on the characters of a pattern, with repetitions expanded. Rare syntax, as a class
    inside a class, counts as the maximum."""
    groups = [0]  # positions so far, by open group
    last = at = 0
    while at < len(pattern):
        char = pattern[at]
        counted = _COUNT.match(pattern, at) if char == "{" else None
        if counted:
            times = max(int(counted[1]), int(counted[2] or 0))
            groups[-1] += last * max(0, times - 1)
            last *= max(1, times)
            at = counted.end()
        elif char == "(":
            start = _GROUP_START.match(pattern, at)
            assert start is not None
            at = start.end()
            if pattern.startswith("?", at):
                return _POSITIONS_MAX
            if not start[0].endswith(")"):
                groups.append(0)
        elif char == ")":
            if len(groups) == 1:
                return _POSITIONS_MAX
            last = groups.pop()
            groups[-1] += last
            at += 1
        elif char in "*+?|^$":
            at += 1
        else:
            atom = _CLASS.match(pattern, at) if char == "[" else _LONG_ESCAPE.match(pattern, at)
            if char == "[" and atom is None:
                return _POSITIONS_MAX
            last = 1
            groups[-1] += 1
            at = atom.end() if atom else at + (2 if char == "\\" else 1)
        if last > _POSITIONS_MAX or groups[-1] > _POSITIONS_MAX:
            return _POSITIONS_MAX
    return groups[0] if len(groups) == 1 else _POSITIONS_MAX


def _at(schema: Any, reference: str) -> Any:
    """The part that a reference points to."""
    if reference == "#":
        return schema
    if not reference.startswith("#/"):
        raise refused(
            f"$ref {shown(reference)}: it may refer to its own parts only, as #/$defs/name"
        )
    part = schema
    for step in reference[2:].split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            raise refused(f"$ref {shown(reference)} points to nothing")
    return part


def too_many_parts() -> ValidationError:
    """The error of a schema that is too large with its references expanded."""
    return refused(f"it has more than {limits.RESULT_SCHEMA_PARTS_MAX} parts, references followed")


def refused(why: str) -> ValidationError:
    """The error of a schema that cannot be used."""
    return ValidationError(f"result_schema is not usable: {why}", field="result_schema")
