"""The documents agree with the program: every name, default and claim in them is checked.

Each rule is a generator over the pages that yields complaints. The table RULES names for every rule
a text that it must refuse and one that it must accept, so that no rule can rot into one that never
fails.
"""

import functools
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from faults.scenarios import SCENARIOS
from lib.plain_english import TIC
from lib.route_table import ROUTES
from prometheus_client.parser import text_string_to_metric_families

from corvo import config, errors, limits
from corvo._fast.http.abuse_counters import REASONS
from corvo._fast.metrics import Histogram
from corvo.cli import root
from corvo.config import load
from corvo.engine.commands import inputs
from corvo.errors import ECHO_SIZE_MAX, ConfigError
from corvo.net.api import requests
from corvo.net.api.prometheus import (
    HISTOGRAMS,
    VALUES,
    QueueSample,
    QueueSeries,
    RouteSample,
    Snapshot,
    render,
)
from corvo.platform import failpoints
from corvo.platform.durations import format_duration

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs/api.md").read_text()
OPERATE = (ROOT / "docs/operate.md").read_text()
BODIES = [
    kind
    for module in (requests, inputs)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__ and kind.__name__[0] != "_"
]
LINES_MAX = {"docs/performance.md": 150, "docs/reliability.md": 150}


class Page:
    """One document: its path from the root and its text."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    def at(self, offset: int) -> str:
        """Path and line number of a place in the text."""
        return f"{self.path}:{self.text.count(chr(10), 0, offset) + 1}"

    @property
    def prose(self) -> str:
        """The text without fenced code; every character keeps its place."""
        return re.sub(r"^```.*?^```", blank, self.text, flags=re.DOTALL | re.MULTILINE)

    def commands(self) -> Iterator[tuple[str, list[str], bool]]:
        """Place and words of every command line, and whether it is a whole one (fenced)."""
        for fence in re.finditer(r"^```\w*\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE):
            code = re.sub(r"\\\n", "  ", fence[1])
            for line in re.finditer(r"^(?:\$ )?(.+)$", code, re.MULTILINE):
                yield from split(self.at(fence.start(1)), line[1], True)
        for span in re.finditer(r"`([^`\n]+)`", self.prose):
            yield from split(self.at(span.start()), span[1], False)


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def split(place: str, line: str, whole: bool) -> Iterator[tuple[str, list[str], bool]]:
    """The simple commands of a line of shell; nothing where it is no shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return
    start = 0
    for end in range(len(words) + 1):
        if end == len(words) or re.fullmatch(r"[&|;<>()]+", words[end]):
            if words[start:end]:
                yield place, words[start:end], whole
            start = end + 1


def invoked(words: list[str], program: str) -> list[str] | None:
    """The arguments of a program, whatever stands in front of it (`PYTHONPATH=. python -m`)."""
    for index, word in enumerate(words):
        if word.rpartition("/")[2] == program:
            return words[index + 1 :]
        if "=" not in word and word not in ("python", "-m", "chrt", "-r", "1", "while", "do"):
            return None
    return None


@functools.cache
def pages() -> list[Page]:
    """README, changelog, everything in docs, and the pages beside the code."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    paths += [ROOT / "bench/README.md", ROOT / "corvo/consensus/README.md"]
    return [Page(str(path.relative_to(ROOT)), path.read_text()) for path in sorted(paths)]


@functools.cache
def route_table() -> list[tuple[str, str, str]]:
    """Every route: its method, its path, and that path as docs/api.md writes it."""
    return [(route.method, route.pattern, route.name) for route in ROUTES]


@functools.cache
def metrics() -> dict[str, set[str]]:
    """Labels of every metric that the page can show."""
    queue = QueueSample("q", [1] * 8, [1.0] * 3, 1, 1, 1)
    histogram = Histogram((1_000_000,))
    histogram.observe(1)
    series = QueueSeries(1, [1] * 8)
    series.add(queue)
    snapshot = Snapshot(
        routes=[RouteSample("GET", "/", 1, 1, histogram)],
        values=dict.fromkeys(VALUES, 1.0),
        histograms=dict.fromkeys(HISTOGRAMS, histogram),
        abuse_counters={"head_size": 1},
    )
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families((render(snapshot) + series.render()).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
            if family.type == "histogram":
                found.setdefault(family.name, set()).update(sample.labels)
    return found


def click_options(command: click.Command) -> set[str]:
    """The flags that a command offers."""
    return {
        name
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
        for name in (*option.opts, *option.secondary_opts)
    }


def subcommands(command: click.Command) -> Iterator[click.Command]:
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from subcommands(child)


@functools.cache
def all_flags() -> set[str]:
    """The flags of the server and of every client command; settings of yes and no negated, too."""
    negated = {f"--no-{option.name}" for option in config.OPTIONS if option.is_flag}
    return negated.union({"--help"}, *(click_options(command) for command in subcommands(root)))


def find_command(words: list[str]) -> tuple[click.Command | None, list[str]]:
    """The command that words name, and its arguments; None if there is none of that name."""
    command: click.Command = root
    while isinstance(command, click.Group) and words and words[0][0] != "-":
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return None, words
        command, words = found, words[1:]
    return command, words


def commands_exist(pages: list[Page]) -> Iterator[str]:
    """`corvo ...` names a command with flags that it has; a whole line can be parsed."""
    for page in pages:
        for place, words, whole in page.commands():
            arguments = invoked(words, "corvo")
            if not arguments or words[0] == "make":
                continue
            command, rest = find_command(arguments)
            if command is None:
                yield f"{place}: no command {' '.join(arguments)}"
                continue
            given = {word.partition("=")[0] for word in rest if word.startswith("--")}
            negated = {f"--no-{o.name}" for o in config.OPTIONS if command.name == "server"}
            if missing := given - click_options(command) - negated - {"--help"}:
                yield f"{place}: {command.name} has no flag {', '.join(sorted(missing))}"
            elif whole and "--help" not in given and "..." not in " ".join(rest):
                try:
                    command.make_context(command.name, list(rest))
                except click.ClickException as error:
                    yield f"{place}: {' '.join(words)}: {error.format_message()}"


def flags_exist(pages: list[Page]) -> Iterator[str]:
    """A flag in a sentence is one of the server or of a client command."""
    foreign = r"`[^`\n]*\b(?:make|python|curl|openssl|strace|pip|pytest) [^`\n]*`"
    for page in pages:
        for match in re.finditer(
            r"(?<![\w-])--[a-z][a-z0-9-]*", re.sub(foreign, blank, page.prose)
        ):
            if match[0] not in all_flags():
                yield f"{page.at(match.start())}: no flag {match[0]}"


def scripts_know_flags(pages: list[Page]) -> Iterator[str]:
    """`make X ARGS=...` and `python x.py ...` give a target or script flags that it reads."""
    makefile = (ROOT / "Makefile").read_text()
    for page in pages:
        for place, words, _ in page.commands():
            if (given := invoked(words, "make")) is not None:
                target = next((word for word in given if "=" not in word), "")
                recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", makefile, re.MULTILINE)
                if target and recipe is None:
                    yield f"{place}: no target {target}"
                    continue
                text = recipe[1] if recipe else ""
                arguments = [word[5:] for word in given if word.startswith("ARGS=")]
                flags = re.findall(r"--[a-z-]+", " ".join(arguments))
            elif "python" in words:
                rest = words[words.index("python") :]
                text = " ".join(rest[:3])
                flags = [word for word in rest if word.startswith("--")]
            else:
                continue
            sources = [script.read_text() for script in named_scripts(text)]
            if re.search(r"\bpython \S*\.py\b|-m bench", text) and not sources:
                yield f"{place}: no script in {text}"
            for flag in flags if sources else ():
                if not any(f'"{flag}"' in source for source in sources):
                    yield f"{place}: {flag} is not read by {text.strip()}"


def named_scripts(text: str) -> list[Path]:
    """The scripts that a command line names, as files or as modules."""
    paths = [ROOT / name for name in re.findall(r"(?:bench|tools)/[\w/]+\.py", text)]
    for module in re.findall(r"-m (bench[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        paths += [path.with_suffix(".py"), path / "__main__.py"]
    if "corvo bench" in text:
        paths += [*ROOT.glob("corvo/cli/bench/*.py")]
    return [path for path in paths if path.exists()]


@functools.cache
def known_variables() -> set[str]:
    """Environment variables that the program, its build and its tests read."""
    found = {config.env_name(name) for name in (*config.NAMES, config.CONFIG_OPTION.name)}
    found.add(failpoints.VARIABLE)
    for command in subcommands(root):
        for param in command.params:
            found |= {param.envvar} if isinstance(param.envvar, str) else set(param.envvar or ())
    for path in ("setup.py", "tests/conftest.py"):
        found |= set(re.findall(r'environ\.get\("(CORVO_[A-Z_]+)"', (ROOT / path).read_text()))
    return found


def variables_exist(pages: list[Page]) -> Iterator[str]:
    """An environment variable is read by something."""
    for page in pages:
        for match in re.finditer(r"\bCORVO_[A-Z][A-Z_]*\b", page.text):
            if match[0] not in known_variables():
                yield f"{page.at(match.start())}: nothing reads {match[0]}"


def metrics_exist(pages: list[Page]) -> Iterator[str]:
    """A metric is on the page of metrics, with the labels that are named."""
    for page in pages:
        for match in re.finditer(r"\bcorvo_(?!client\b)([a-z_]+)(?:\{([a-z_,]+)\})?", page.text):
            name = f"corvo_{match[1]}"
            if name not in metrics():
                yield f"{page.at(match.start())}: no metric {name}"
            elif match[2] and not set(match[2].split(",")) <= metrics()[name]:
                yield f"{page.at(match.start())}: {name} has no such labels"


def routes_exist(pages: list[Page]) -> Iterator[str]:
    """`METHOD /path` is in the route table; so is the path of every URL of the API."""
    for page in pages:
        for match in re.finditer(r"\b(GET|POST|PUT|DELETE|PATCH|HEAD) (/[\w/{}.-]*)", page.text):
            named = [
                name for method, *names in route_table() if method == match[1] for name in names
            ]
            if not is_path(match[2], named):
                yield f"{page.at(match.start())}: no route {match[0]}"
        for match in re.finditer(r"/api/v1/[\w/{}$.-]+", page.text):
            if not is_path(match[0], [path for _, path, _ in route_table()]):
                yield f"{page.at(match.start())}: no route {match[0]}"


def is_path(path: str, patterns: list[str]) -> bool:
    """Whether one of the patterns fits the path, which has names or values for parameters."""
    for pattern in patterns:
        parts = [r"[^/]+" if part[:1] == "{" else re.escape(part) for part in pattern.split("/")]
        if re.fullmatch("/".join(parts), path):
            return True
    return False


def parameters_exist(pages: list[Page]) -> Iterator[str]:
    """A query parameter is read by a handler."""
    for page in pages:
        for match in re.finditer(r"(?<=[?&])([a-z_]+)(?==)", page.text):
            if not re.search(rf'"{match[1]}["=]', product_text()):
                yield f"{page.at(match.start())}: no parameter {match[1]}"


def files_of_settings_load(pages: list[Page]) -> Iterator[str]:
    """A file of settings that is shown has no mistake."""
    for page in pages:
        for match in re.finditer(r"^```toml\n(.*?)^```", page.text, re.DOTALL | re.MULTILINE):
            given = {name: str(value).lower() for name, value in tomllib.loads(match[1]).items()}
            if is_refused(given):
                yield f"{page.at(match.start())}: these settings are refused"


def messages_exist(pages: list[Page]) -> Iterator[str]:
    """A message in bold quotes, without its variable parts, is one of the program."""
    for page in pages:
        for bold in re.finditer(r"\*\*(\"[^*]+)\*\*", page.prose):
            for message in re.findall(r"\"([^\"]+)\"", bold[1]):
                if any(part.strip().lower() not in product_text() for part in message.split("...")):
                    yield f"{page.at(bold.start())}: no message {message!r}"


def headers_exist(pages: list[Page]) -> Iterator[str]:
    """A header of ours is read or written somewhere."""
    for page in pages:
        for match in re.finditer(r"\bX-Corvo-[A-Za-z-]+\b", page.text):
            if match[0].lower() not in product_text():
                yield f"{page.at(match.start())}: no header {match[0]}"


@functools.cache
def product_text() -> str:
    """All sources of the program, in lower case."""
    sources = [*ROOT.glob("corvo/**/*.py"), *ROOT.glob("corvo/**/*.pyx")]
    return "\n".join(path.read_text() for path in sources).lower()


def files_exist(pages: list[Page]) -> Iterator[str]:
    """A source file or module that is named exists."""
    name = re.compile(r"`((?:[\w*-]+/)*[\w*-]+\.(?:py|pyx|pxd|pyi|md|txt|toml|proto|service))`")
    for page in pages:
        folders = ROOT, (ROOT / page.path).parent
        for match in name.finditer(page.prose):
            found = any(list(folder.glob(match[1])) for folder in folders)
            if not found:
                yield f"{page.at(match.start())}: no file {match[1]}"
        for match in re.finditer(r"`((?:corvo|tests|tools|bench|docs)/[\w/]+)/?`", page.prose):
            if not (ROOT / match[1]).exists():
                yield f"{page.at(match.start())}: no folder {match[1]}"
        for match in re.finditer(r"`corvo((?:\.[a-z_0-9]+)+)`", page.prose):
            path = ROOT / f"corvo{match[1].replace('.', '/')}"
            if not path.is_dir() and not any(path.parent.glob(f"{path.name}.py*")):
                yield f"{page.at(match.start())}: no module corvo{match[1]}"


SIZES = {"KiB": limits.KIB, "MiB": limits.MIB}


def number(text: str) -> str:
    """A size or count as a setting takes it."""
    digits, _, unit = text.partition(" ")
    if not re.fullmatch(r"[\d,]+", digits) or (unit and unit not in SIZES):
        return text
    return str(int(digits.replace(",", "")) * SIZES.get(unit, 1))


def defaults_are_true(pages: list[Page]) -> Iterator[str]:
    """A default is that of the table of settings: "`--x` (default `y`)", and rows `| y | --x |`."""
    table = {f"--{option.name}": option.default for option in config.OPTIONS}
    stated = re.compile(
        r"`(--[a-z-]+)`\s+\(default\s+`([^`]+)`|\| ([^|\n]+) \| `(--[a-z-]+)` \|$", re.M
    )
    for page in pages:
        for match in stated.finditer(page.text):
            flag, value = match[1] or match[4], match[2] or match[3]
            if flag in table and number(value.strip("`")) != table[flag]:
                yield f"{page.at(match.start())}: {flag} is {table[flag]!r} by default, not {value}"


class Claim(NamedTuple):
    """A sentence about something that is refused or ignored: words of it, and what shows it."""

    words: str
    holds: Callable[[], bool]


def is_refused(flags: dict[str, str]) -> bool:
    """Whether these settings stop the start."""
    try:
        load(flags, {})
    except ConfigError:
        return True
    return False


def is_ignored(flags: dict[str, str]) -> bool:
    """Whether these settings change nothing and are listed as ignored."""
    plain, given = load({}, {}), load(flags, {})
    values = [item.name for item in fields(plain) if "option" in item.metadata]
    same = all(getattr(plain, name) == getattr(given, name) for name in values)
    return same and len(given.ignored) == len(flags)


def exits(environ: dict[str, str], *flags: str) -> bool:
    """Whether a server that is started like this ends with status 1 before it serves."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "corvo", "server", "--data-dir", folder, *flags]
        environ = {"PYTHONPATH": str(ROOT), "PATH": "", **environ}
        done = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False)
        return done.returncode == 1 and not (Path(folder) / "wal").exists()


def is_shown(test: str) -> bool:
    """Whether a test of another file shows it."""
    path, _, name = test.partition("::")
    return f"def {name}(" in (ROOT / "tests" / path).read_text()


CLAIMS = [
    Claim("refuses any other address unless", lambda: is_refused({"bind": "0.0.0.0:8080"})),
    Claim(
        "`--join` has no effect when the data directory already holds a node",
        lambda: is_shown("process/test_cluster.py::test_a_rolling_restart"),
    ),
    Claim(
        "The server refuses to start with this variable unless `--test-clock`",
        lambda: exits({failpoints.VARIABLE: "apply.before=kill"}),
    ),
    Claim(
        "refuse one that does not exist",
        lambda: is_shown(
            "unit/cli/test_safety.py::test_a_setting_of_a_queue_that_does_not_exist",
        ),
    ),
]
CLAIMED = r"refus|reject|not accept|stops? the start|does not start|ignore|no effect|means nothing"


def sentences(page: Page) -> Iterator[tuple[str, str]]:
    """Place and text of every sentence that is neither code nor in a table."""
    prose = re.sub(r"^\|.*$", blank, page.prose, flags=re.MULTILINE)
    for match in re.finditer(r"\S.*?(?:[.!?:](?=\s)|\n\s*\n|\Z)", prose, re.DOTALL):
        yield page.at(match.start()), " ".join(match[0].split())


def claims_are_tested(pages: list[Page]) -> Iterator[str]:
    """A sentence that tells of a flag that it is refused or ignored has a line in CLAIMS."""
    for page in pages:
        for place, sentence in sentences(page):
            claims = re.search(r"(?<![\w-])--[a-z]", sentence) and re.search(CLAIMED, sentence)
            if claims and not any(claim.words in sentence for claim in CLAIMS):
                yield f"{place}: no test shows that {sentence}"


def plain_english(pages: list[Page]) -> Iterator[str]:
    """Pages have no tics of a literal translation, and American spelling.

    Tables that the program prints are left out: their texts belong to the program.
    """
    for page in pages:
        prose = page.text
        for table in printed_tables():
            prose = prose.replace(table, re.sub(r"[^\n]", " ", table))
        prose = re.sub(r"`[^`\n]*`|\"[^\"\n]*\"", blank, Page(page.path, prose).prose)
        for match in TIC.finditer(prose):
            yield f"{page.at(match.start())}: {match[0]}"


def printed_tables() -> list[str]:
    """The tables of the documents that the program prints."""
    rows = [f"| `{reason}` | {text[0].upper()}{text[1:]}. |" for reason, text in REASONS.items()]
    return [config.options_table(), failpoints.table(), "\n".join(rows)]


def short_enough(pages: list[Page]) -> Iterator[str]:
    """Pages for users stay short."""
    for page in pages:
        count = page.text.count("\n")
        if count > LINES_MAX.get(page.path, count):
            yield f"{page.path}: {count} lines"


Rule = Callable[[list[Page]], Iterable[str]]
OLD = "An unknown flag stops the start; so do flags of Corvo without a part, such as `--tls-cert`."
# Rule, a text that it refuses, one that it accepts. One line for each way to break it.
RULES: list[tuple[Rule, str, str]] = [
    (commands_exist, "Run `corvo enqeue`.", "Run `corvo enqueue`."),
    (commands_exist, "`corvo locks relase`", "`corvo locks release`"),
    (commands_exist, "`corvo fetch --queue x`", "`corvo fetch --count 2 x`"),
    (commands_exist, "`corvo server --no-lock`", "`corvo server --no-durable`"),
    (commands_exist, "```\n$ corvo move JOB\n```\n", "```\n$ corvo move JOB QUEUE\n```\n"),
    (commands_exist, "```\ncorvo bench --jobs x &\n```\n", "```\ncorvo bench --jobs 5 &\n```\n"),
    (flags_exist, "It reads --fast.", "It reads --bind."),
    (flags_exist, "`--tls`", "`--tls-cert`"),
    (flags_exist, "With `--raft-shards`.", "With `--no-mirror`."),
    (scripts_know_flags, "`make tests`", "`make test`"),
    (scripts_know_flags, '`make sim ARGS="--fast"`', '`make sim ARGS="--full"`'),
    (scripts_know_flags, "`python bench/none.py`", "`python bench/scale.py`"),
    (scripts_know_flags, "`python bench/scale.py --fast`", "`python bench/scale.py --jobs 1`"),
    (variables_exist, "`CORVO_FAST`", "`CORVO_MIRROR`"),
    (metrics_exist, "`corvo_jobs_done`", "`corvo_jobs`"),
    (metrics_exist, "`corvo_jobs{queue}`", "`corvo_queue_jobs{queue,state}`"),
    (metrics_exist, "`corvo_raft_applied`", "`corvo_raft_applied_total`"),
    (routes_exist, "`GET /job/{id}`", "`GET /jobs/{job_id}`"),
    (routes_exist, "`POST /queues`", "`POST /api/v1/queues/mail/pause`"),
    (routes_exist, "https://x/api/v1/readyz", "`GET /healthz`, https://x/healthz"),
    (routes_exist, "curl localhost:8080/api/v1/que", "curl localhost:8080/api/v1/queues"),
    (messages_exist, '**"the log is gone".**', '**"the log is damaged" and "damaged job ...".**'),
    (headers_exist, "`X-Corvo-Fast`", "`X-Corvo-Index`"),
    (parameters_exist, "`GET /dead?que=x`", "`GET /dead?queue=x&limit=5`"),
    (files_of_settings_load, "```toml\nbin = 'x'\n```\n", "```toml\nmirror = true\n```\n"),
    (files_exist, "`corvo/none.py`", "`corvo/limits.py`"),
    (files_exist, "`corvo.none`", "`corvo.limits`"),
    (files_exist, "`corvo/none`", "`corvo/fsm`"),
    (defaults_are_true, "`--stream-max-fps` (default `5`)", "`--stream-max-fps` (default `500`)"),
    (defaults_are_true, "| 1 KiB | `--max-payload-size` |", "| 256 KiB | `--max-payload-size` |"),
    (claims_are_tested, OLD, "It refuses any other address unless `--insecure` is given."),
    (claims_are_tested, "`--join` is ignored.", "`--join` names a node."),
    (plain_english, "A job comes back.", "A job is retried."),
    (plain_english, "The behaviour.", "The behavior. Otherwise `behaviour`."),
    (short_enough, "x\n" * 151, "x\n" * 150),
]


@pytest.mark.parametrize("rule", dict.fromkeys(r for r, _, _ in RULES), ids=lambda r: r.__name__)
def test_documents_keep(rule: Rule) -> None:
    complaints = list(rule(pages()))
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(("rule", "bad", "good"), RULES, ids=lambda v: getattr(v, "__name__", ""))
def test_rule_can_fail(rule: Rule, bad: str, good: str) -> None:
    assert list(rule([Page("docs/performance.md", bad)]))
    assert list(rule([Page("docs/performance.md", good)])) == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.words)
def test_claim_is_true(claim: Claim) -> None:
    assert claim.holds()
    assert any(claim.words in text for page in pages() for _, text in sentences(page))


def test_a_claim_can_be_false() -> None:
    assert not is_refused({"tls-cert": "a", "tls-key": "b"})
    assert not is_ignored({"max-pending": "5"})
    assert not is_ignored({"tls-cert": "a", "tls-key": "b"})
    assert not is_shown("process/test_cluster.py::test_nothing")
    assert exits({}, "--admin-password=x") and not exits({}, "--help")


def listed(heading: str) -> list[str]:
    """The settings that a paragraph lists in code, after the sentence that ends like this."""
    paragraph = OPERATE.partition(f"{heading}:\n")[2].partition("\n\n")[0]
    return re.findall(r"`([\w-]+)`", paragraph)


def test_settings_of_absent_features_are_refused() -> None:
    assert listed("It does not start if one of them switches its feature on") == [*config.ABSENT]
    assert all(is_refused({name: "5"}) for name in config.ABSENT)
    assert not any(is_refused({name: off}) for name, (_, off) in config.ABSENT.items())


def test_settings_that_are_ignored_are_listed() -> None:
    assert listed("They are ignored, and the log\nlists each one that is given") == [
        *config.IGNORED
    ]
    assert all(is_ignored({name: "5"}) for name in config.IGNORED)


FIELD_DEFAULTS = {
    "max_retries": str(limits.RETRIES_DEFAULT),
    "retry_base_delay": format_duration(limits.RETRY_BASE_DELAY_DEFAULT_MS * limits.MS_NS),
    "retry_max_delay": format_duration(limits.RETRY_MAX_DELAY_DEFAULT_MS * limits.MS_NS),
    "retry_jitter": str(limits.RETRY_JITTER_DEFAULT_PPM / 1_000_000),
    "timeout": str(limits.FETCH_WAIT_DEFAULT_S),
    "lease_duration": str(limits.LEASE_DEFAULT_S),
    "catch_up_limit": str(limits.CATCH_UP_LIMIT_DEFAULT),
}


@pytest.mark.parametrize("field", FIELD_DEFAULTS)
def test_the_default_of_a_field_is_documented(field: str) -> None:
    stated = re.findall(rf"^\| `{field}` \| `?([^|`]+)`? \|", API, re.MULTILINE)
    assert stated == [FIELD_DEFAULTS[field]]


def amount(value: int) -> str:
    """A size in the largest unit that divides it, or a count with commas."""
    for unit in ("MiB", "KiB"):
        if value >= SIZES[unit] and value % SIZES[unit] == 0:
            return f"{value // SIZES[unit]} {unit}"
    return f"{value:,}"


def seconds(value_ns: int) -> str:
    return f"{value_ns // limits.SECOND_NS:,}"


# Statements of limits that are not settings: a page, and words that the limits give.
LIMITS_STATED = [
    ("docs/api.md", f"`limit` is 1 to {limits.PAGE_MAX:,}, and {limits.PAGE_DEFAULT} by default"),
    ("docs/api.md", f"also ends after {amount(limits.PAGE_SIZE_MAX)}"),
    ("docs/api.md", f"have 1 to {limits.QUEUE_NAME_SIZE_MAX} bytes"),
    ("docs/api.md", f"up to {limits.HTTP2.streams_max:,} requests in flight"),
    ("docs/api.md", f"at most {amount(limits.GROUP_KEY_SIZE_MAX)}"),
    ("docs/api.md", f"Ids of up to {limits.DEPENDENCIES_MAX:,} jobs"),
    ("docs/api.md", f"batch together, up to {limits.BATCH_DEPENDENCIES_MAX:,}"),
    ("docs/api.md", f"repeats is cut at {ECHO_SIZE_MAX} bytes"),
    ("docs/api.md", f"Up to {limits.TAGS_COUNT_MAX} pairs of texts"),
    ("docs/api.md", f"at most {amount(limits.RESULT_SCHEMA_SIZE_MAX)} and"),
    ("docs/api.md", f"with up to {amount(limits.ENQUEUE_BATCH_MAX)} jobs"),
    ("docs/api.md", f"`Idempotency-Key` (up to {amount(limits.IDEMPOTENCY_KEY_SIZE_MAX)})"),
    ("docs/api.md", f"Names of up to {limits.FETCH_QUEUES_MAX} queues"),
    ("docs/api.md", f"at most {limits.FETCH_WAIT_MAX_S} seconds; 0 does not wait"),
    ("docs/api.md", f"`count` (1 to {limits.FETCH_BATCH_MAX})"),
    ("docs/api.md", f"A response ends after {amount(limits.FETCH_REPLY_SIZE_MAX)}"),
    ("docs/api.md", f"text of up to {amount(limits.STREAM_DELTA_SIZE_MAX)} for subscribers"),
    ("docs/api.md", f"up to {limits.ACK_BATCH_MAX}: 200"),
    (
        "docs/api.md",
        f"at most {limits.LOG_LINES_MAX:,} lines\nand {amount(limits.LOG_CALL_SIZE_MAX)}",
    ),
    ("docs/api.md", f"newest {amount(limits.LOG_ATTEMPT_SIZE_MAX)} of lines, a job"),
    ("docs/api.md", f"a job {amount(limits.LOG_SIZE_MAX)}."),
    ("docs/api.md", f"by default, at most {limits.END_WAIT_MAX_S})"),
    ("docs/api.md", f"newest {amount(limits.EVENT_LOG_SIZE_MAX)} of events of all jobs"),
    ("docs/api.md", f"oldest first; up to {limits.EVENTS_PAGE_MAX}."),
    ("docs/api.md", f"(any JSON, {amount(limits.FEEDBACK_SIZE_MAX)})"),
    ("docs/api.md", f"The jobs, up to {amount(limits.BULK_IDS_MAX)}."),
    ("docs/api.md", f"steps of {limits.STEP_JOBS} jobs"),
    ("docs/api.md", f"newest {limits.BULK_OPERATIONS_MAX:,} operations are kept for a day"),
    ("docs/api.md", f"within {seconds(limits.MIRROR_WAIT_NS)} seconds, the response"),
    ("docs/api.md", f"longer than {seconds(limits.SEARCH_NS)} seconds is stopped"),
    ("docs/api.md", f"the {limits.FACET_VALUES_SHOWN} most frequent values"),
    ("docs/api.md", f"any other value means {limits.SEARCH_PAGE_DEFAULT}"),
    ("docs/api.md", f"below {amount(limits.SEARCH_COUNTED_MAX)} or known"),
    ("docs/api.md", f"The rate is at most {limits.RATE_MAX:,}"),
    ("docs/api.md", f"sent every {seconds(limits.STREAM_KEEPALIVE_NS)}\nseconds"),
    ("docs/api.md", f"at most {limits.OPEN_STREAMS_MAX:,} open streams"),
    ("docs/api.md", f"lists of up to {limits.STREAM_FILTER_NAMES_MAX} items"),
    ("docs/api.md", f"at most about {amount(limits.STREAM_UNSENT_SIZE_MAX)}."),
    ("docs/api.md", f"have up to {amount(limits.RPC_MESSAGE_SIZE_MAX)}. Unknown"),
    ("docs/api.md", f"enqueues (up to {limits.LIFECYCLE_ENQUEUES_MAX:,})"),
    ("docs/api.md", f"jobs (up to {limits.LIFECYCLE_CREDIT_MAX:,} outstanding)"),
    ("docs/api.md", f"waits for {seconds(limits.LIFECYCLE_TURN_WAIT_NS)} seconds because"),
    ("docs/api.md", f"wait for up to {seconds(limits.LEADER_WAIT_NS)} seconds,"),
    ("docs/api.md", f"there are {limits.SCHEDULES_MAX:,} already"),
    ("docs/api.md", f"There are {limits.QUEUES_MAX:,} queues already"),
    ("docs/api.md", f"longer than {amount(limits.TARGET_SIZE_MAX)}."),
    (
        "docs/api.md",
        f"than {limits.HEAD_FIELDS_MAX} header fields or {amount(limits.HEAD_SIZE_MAX)}",
    ),
    ("docs/operate.md", f"lags by more than {amount(limits.RAFT_LOG_KEPT_SIZE)} of log"),
    ("docs/operate.md", f"segments of {amount(limits.WAL_SEGMENT_SIZE)}."),
    ("docs/operate.md", f"| {amount(limits.BALLAST_SIZE)} that are released"),
    ("docs/operate.md", f"below {amount(limits.DISK_FREE_REFUSE)} of free space"),
    ("docs/operate.md", f"get {seconds(limits.LEASE_GRACE_NS)} seconds of grace"),
    ("docs/operate.md", f"still for {seconds(limits.PAUSE_NOTICED_NS)} second or more"),
    ("docs/operate.md", f"| bytes of writes in flight | {amount(limits.PENDING_SIZE_MAX)} |"),
    (
        "docs/operate.md",
        f"backtrace | {amount(limits.PROGRESS_SIZE_MAX)}; {amount(limits.ERROR_SIZE_MAX)};"
        f" {amount(limits.BACKTRACE_SIZE_MAX)} |",
    ),
    ("docs/operate.md", f"{limits.TAGS_COUNT_MAX} pairs, {amount(limits.TAGS_SIZE_MAX)} |"),
    ("docs/operate.md", f"| {limits.QUEUES_MAX:,} each |"),
    ("docs/operate.md", f"{amount(limits.ENQUEUE_BATCH_MAX)}; {limits.FETCH_BATCH_MAX} |"),
    (
        "docs/operate.md",
        f"one address | {limits.CONNECTIONS_MAX:,}; {limits.CONNECTIONS_PER_ADDRESS_MAX:,} |",
    ),
    ("docs/reliability.md", f"after {limits.FLUSH_IDLE_NS // limits.MS_NS} ms without writes"),
    (
        "docs/reliability.md",
        f"after {limits.FLUSH_RECORDS_LIGHT} to {limits.FLUSH_RECORDS:,} changed records or"
        f" {amount(limits.FLUSH_SIZE)} (up to {limits.FLUSH_RECORDS_MAX:,} records",
    ),
]


@pytest.mark.parametrize(("page", "words"), LIMITS_STATED, ids=lambda value: value[:40])
def test_a_stated_limit_is_the_one_in_force(page: str, words: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert " ".join(words.split()) in text


def test_every_endpoint_is_documented() -> None:
    for method, _, name in route_table():
        assert name == "/" or f"`{method} {name}`" in API


@pytest.mark.parametrize("body", BODIES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(body: Any) -> None:
    for field in body.__struct_encode_fields__:
        assert re.search(rf"[`\"]{field}[`\"]", API), field


def test_every_code_is_documented_with_its_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    answered = {(str(k.status), k.code) for k in kinds if getattr(k, "status", 500) != 500}
    assert set(re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", API, re.MULTILINE)) == answered


def test_the_table_of_faults_has_every_fault() -> None:
    page = (ROOT / "docs/testing.md").read_text()
    rows = re.findall(r"^\| (A[\w-]+) \| ([^|]+) \|", page, re.MULTILINE)
    assert rows == [(fault.name, fault.what) for fault in SCENARIOS]


def test_every_reason_of_refusals_is_documented() -> None:
    page = (ROOT / "docs/operate.md").read_text()
    for reason, text in REASONS.items():
        assert f"| `{reason}` | {text[0].upper()}{text[1:]}. |\n" in page


def test_the_unit_is_the_one_in_tools() -> None:
    unit = (ROOT / "tools/corvo.service").read_text()
    shown = re.search(r"```ini\n(.*?)```", (ROOT / "docs/operate.md").read_text(), re.DOTALL)
    assert shown is not None and shown.group(1) in unit


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
def test_links_lead_somewhere(page: Path | str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_layer_is_in_the_picture() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for line in contract["contracts"][0]["layers"]:
        for module in set(re.findall(r"corvo\.\w+", line)) - {"corvo.__main__"}:
            assert f"`{module}`" in page, module
