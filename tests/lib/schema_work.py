"""Validates results by schemas in a process with limits on its CPU time and memory.

`python -m lib.schema_work one` reads one case from standard input: {"schema", "results"}.
`python -m lib.schema_work random COUNT` tries random schemas with results as large as accepted.
Either prints the case that it works on, so that the last line names the case that ended it.
"""

import json
import resource
import sys
import time
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from corvo.engine.commands import result_schemas
from corvo.errors import CorvoError, ResultSchemaError

CPU_MAX_S = 3.0  # per case; the bound of the server is about 0.1 s, and this leaves a wide margin
MEMORY_MAX = 1 << 29
NAMES = ("a", "b", "c")
PATTERNS = (
    *("a", "^b", "^[a-z]+$", "(a|b)*c", "a[ab]{40}[^ab]", "^([ab]{1,9}){1,9}$", "\\w+\\d$", "."),
    *("(x+x+)+y", "^a{20}$", "[^b]*b{3}|c", "(a?){30}a{30}"),
)
REFERENCES = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/$defs/c"])


def limited(cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def outcome(schema: Any, result: bytes) -> str:
    """The name of the error that a case ends with, or `valid`. Raises when it takes too long."""
    text = json.dumps(schema).encode()
    started = time.process_time()
    try:
        result_schemas.checked(text)
    except CorvoError:
        return "refused"
    try:
        result_schemas.check_result(text, result)
    except CorvoError as error:
        found = type(error).__name__
        assert not isinstance(error, ResultSchemaError) or error.fields["validation_errors"]
    else:
        found = "valid"
    taken = time.process_time() - started
    assert taken < CPU_MAX_S, f"took {taken:.1f} s"
    return found


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1)
    keywords = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("not", "if", "then", "else", "items", "contains"), inner),
        **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), inner),
        **dict.fromkeys(("additionalProperties", "propertyNames"), inner),
        **dict.fromkeys(("properties", "dependentSchemas"), by_name),
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, min_size=1),
        "$ref": REFERENCES,
        "$dynamicRef": REFERENCES,
        "pattern": st.sampled_from(PATTERNS),
        "uniqueItems": st.just(True),
        "minContains": st.integers(0, 3),
        "required": st.lists(st.sampled_from(NAMES), unique=True),
        "enum": st.lists(st.sampled_from([1, "a", [1], {"b": 1}]), min_size=1),
        "const": st.sampled_from([1, "x" * 1_000, [[1]]]),
        "multipleOf": st.sampled_from([2, 0.01]),
        "type": st.sampled_from(["object", "array", "string", "null"]),
        "format": st.sampled_from(["regex", "email", "date-time"]),
    }
    pairs = st.one_of([st.tuples(st.just(name), value) for name, value in keywords.items()])
    return st.lists(pairs, min_size=1, max_size=4).map(dict)


LEAVES = st.booleans() | REFERENCES.map(lambda to: {"$ref": to}) | st.just({"type": "null"})
PARTS = st.recursive(LEAVES, _keywords, max_leaves=12)
SCHEMAS = st.tuples(_keywords(PARTS), PARTS, PARTS, PARTS).map(
    lambda parts: parts[0] | {"$defs": dict(zip(NAMES, parts[1:], strict=True))}
)
SHAPES = ("members", "items", "both", "list", "lists", "objects", "text", "texts", "names")


def shaped(shape: str, size: int) -> bytes:
    """The text of a result with about this number of values."""
    depth = min(size, 120)
    if shape == "members":
        return b'{"b":' * depth + b"1" + b"}" * depth
    if shape == "items":
        return b"[" * depth + b"1" + b"]" * depth
    if shape == "both":
        return b'{"b":[1,' * depth + b'"x"' + b"]}" * depth
    found: Any = {
        "list": list(range(size)),
        "lists": [[at, [at]] for at in range(size // 3)],
        "objects": [{"a": at, "b": [1]} for at in range(size // 4)],
        "text": "ab" * (8 * size),
        "texts": ["ab" * (at % 50) for at in range(size)],
        "names": {f"b{at}": at for at in range(size)},
    }[shape]
    return json.dumps(found).encode()


def largest(schema: Any, shape: str) -> str:
    """The outcome for the largest result of a shape that is not too large for a schema."""
    size = 60_000
    found = outcome(schema, shaped(shape, size))
    while found == "PayloadTooLarge" and size > 1:
        size //= 2
        found = outcome(schema, shaped(shape, size))
    return found


def random_cases(count: int) -> None:
    counts: dict[str, int] = {}

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count <= 1_000,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(SCHEMAS, st.sampled_from(SHAPES))
    def run(schema: Any, shape: str) -> None:
        sys.stdout.write(json.dumps({"schema": schema, "shape": shape}) + "\n")
        sys.stdout.flush()
        # Small results have all their errors listed.
        found = outcome(schema, shaped(shape, 300))
        if found != "refused":
            found = largest(schema, shape)
        counts[found] = counts.get(found, 0) + 1

    run()
    sys.stdout.write(json.dumps(counts) + "\n")


def main() -> None:
    if sys.argv[1] == "one":
        limited(10)
        case = json.load(sys.stdin)
        for result in case["results"]:
            sys.stdout.write(outcome(case["schema"], result.encode()) + "\n")
    else:
        count = int(sys.argv[2])
        limited(60 + count)
        random_cases(count)


if __name__ == "__main__":
    main()
