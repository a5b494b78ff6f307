"""Server settings: one table defines flags, environment variables, file keys, docs and errors.

A setting is taken from the first of these that has it: command-line flag (`--data-dir x`),
environment (`CORVO_DATA_DIR=x`), TOML file (`data-dir = "x"`; the file is named by `--config` or
`CORVO_CONFIG`), default. Every source is parsed by the same rules. A wrong value stops the start
with a message that names the setting, its source and the value.
"""

import functools
import ipaddress
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from corvo import limits
from corvo.errors import ConfigError, ValidationError, cut
from corvo.platform import environment
from corvo.platform.durations import format_duration, parse_duration
from corvo.platform.echoes import hint
from corvo.platform.origins import parse_hosts, parse_origins
from corvo.platform.sizes import parse_size

BODY_SIZE_MAX: Final = limits.ENTRY_SIZE_MAX - limits.ENTRY_SEAL_SIZE
LOG_LEVELS: Final = ("debug", "info", "warn", "error")
LOG_FORMATS: Final = ("text", "json")
NODE_ID_SIZE_MAX: Final = 128
SECRET_SIZE_MIN: Final = 16


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a listener; an empty host means all addresses."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. `parse` takes a text; its ValueError describes the expected form."""

    name: str
    default: str
    parse: Callable[[str], Any]
    help: str
    is_flag: bool = False
    is_secret: bool = False  # the value is never printed
    also: str = ""  # older name of the same setting
    repeats: bool = False  # the flag can be given several times; other sources separate by commas

    @property
    def env(self) -> str:
        """The environment variable of this setting."""
        return env_name(self.name)


def env_name(name: str) -> str:
    """The environment variable of a setting."""
    return "CORVO_" + name.upper().replace("-", "_")


def parse_flag(text: str) -> bool:
    """Parse a boolean value."""
    values = {"true": True, "1": True, "yes": True, "on": True}
    values |= {"false": False, "0": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError("true or false")
    return values[text.lower()]


def _address(text: str) -> Address:
    wanted = "HOST:PORT, or :PORT for all addresses"
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise ValueError(wanted)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "/" in host:
        raise ValueError(wanted)
    return Address(host, int(port))


def _own_address(text: str) -> Address | None:
    return _address(text) if text else None


def _discovery(text: str) -> str:
    mode, named, rest = text.partition(":")
    name, numbered, port = rest.partition(":")
    wrong = bool(named and not name) or bool(numbered and not (port.isascii() and port.isdigit()))
    if text and (mode != "dns" or wrong):
        raise ValueError("dns, dns:NAME or dns:NAME:PORT: other modes are not supported")
    return text


def _secret(text: str) -> str:
    if text and len(text.encode()) < SECRET_SIZE_MIN:
        raise ValueError(f"at least {SECRET_SIZE_MIN} characters")
    return text


def _text(text: str) -> str:
    if not text:
        raise ValueError("a non-empty text")
    return text


def _node_id(text: str) -> str:
    wrong = not text.isprintable() or " " in text or "/" in text
    if not text or len(text) > NODE_ID_SIZE_MAX or wrong:
        raise ValueError(f"1 to {NODE_ID_SIZE_MAX} printable characters, no blanks or slashes")
    return text


def _duration(text: str) -> int:
    try:
        return parse_duration(text)
    except ValidationError:
        raise ValueError("a duration, such as 500ms") from None


def _retention(text: str) -> int:
    if text == "forever":
        return limits.DUE_MAX_NS
    try:
        return min(parse_duration(text), limits.DUE_MAX_NS)
    except ValidationError:
        raise ValueError("a duration such as 7d, or forever") from None


def _own_retention(text: str) -> int | None:
    return _retention(text) if text else None


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return text

    return parse


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:20]) <= high):
            raise ValueError(f"a number from {low} to {high}")
        return int(text)

    return parse


def _size(low: int, high: int) -> Callable[[str], int]:
    return functools.partial(parse_size, low=low, high=high)


def _option(name: str, default: str, parse: Callable[[str], Any], help: str, also: str = "") -> Any:
    repeats = parse in (parse_hosts, parse_origins)
    option = Option(
        name, default, parse, help, parse is parse_flag, parse is _secret, also, repeats
    )
    return field(metadata={"option": option})


@dataclass(frozen=True, slots=True)
class Config:
    """The effective settings. Sizes are bytes."""

    bind: Address = _option(
        "bind",
        "127.0.0.1:8080",
        _address,
        "Listen address of the HTTP API; :PORT means all addresses. An address that other"
        " machines can reach needs --insecure, because this version has no authentication.",
    )
    insecure: bool = _option(
        "insecure", "false", parse_flag, "Allow a listen address that other machines can reach."
    )
    allowed_hosts: tuple[str, ...] = _option(
        "allowed-hosts",
        "",
        parse_hosts,
        "Host name under which clients reach this server; repeatable. Requests for other names get"
        " status 421. Always allowed: addresses, localhost, and the names in --bind,"
        " --http-advertise, --raft-bind, --raft-advertise and --discover.",
    )
    cors_origins: tuple[str, ...] = _option(
        "cors-origin",
        "",
        parse_origins,
        "Origin whose web pages may use the API, such as https://app.example.com; repeatable."
        " Requests for pages of other sites get status 403.",
    )
    tls_cert: str = _option(
        "tls-cert",
        "",
        str,
        "File with the certificate chain of the server (PEM); enables TLS, and disables plain HTTP."
        " SIGHUP reloads it.",
    )
    tls_key: str = _option("tls-key", "", str, "File with the private key of --tls-cert (PEM).")
    tls_ca: str = _option(
        "tls-ca",
        "",
        str,
        "File with the CA certificates (PEM) that verify the API of other cluster nodes; default:"
        " the CA certificates of the system.",
    )
    data_dir: str = _option("data-dir", "data", _text, "Directory of the log and the state store.")
    durable: bool = _option(
        "durable",
        "true",
        parse_flag,
        "Acknowledge a write after fsync. Otherwise a write is acknowledged when the operating"
        " system has it: it survives a crash of the process, but not a power failure.",
    )
    node_id: str = _option(
        "node-id", "node-1", _node_id, "Name of this node; unique in the cluster."
    )
    raft_bind: Address | None = _option(
        "raft-bind",
        "",
        _own_address,
        "Listen address for other cluster nodes, such as :9000. Without this setting, --join and"
        " --discover, the server is a single node.",
    )
    raft_advertise: Address | None = _option(
        "raft-advertise",
        "",
        _own_address,
        "Address under which other nodes reach --raft-bind of this node, if it differs.",
    )
    http_advertise: Address | None = _option(
        "http-advertise",
        "",
        _own_address,
        "Address under which other nodes reach the HTTP API of this node, if it differs from"
        " --bind.",
    )
    cluster_secret: str = _option(
        "cluster-secret",
        "",
        _secret,
        "Shared secret of the cluster; nodes reject peers that do not know it.",
    )
    raft_tls_cert: str = _option(
        "raft-tls-cert",
        "",
        str,
        "File with the certificate of this node for connections between nodes (PEM); enables mutual"
        " TLS, which all nodes need. SIGHUP reloads it.",
    )
    raft_tls_key: str = _option(
        "raft-tls-key", "", str, "File with the private key of --raft-tls-cert (PEM)."
    )
    raft_tls_ca: str = _option(
        "raft-tls-ca",
        "",
        str,
        "File with the CA certificate (PEM) of the nodes; that CA must sign for this cluster only.",
    )
    join: str = _option(
        "join",
        "",
        str,
        "Cluster node to join when the data directory is empty: the URL or address of its HTTP API,"
        " or its --raft-bind address.",
    )
    discover: str = _option(
        "discover",
        "",
        _discovery,
        "Find the cluster to join by DNS: dns, dns:NAME or dns:NAME:PORT. If no node answers, only"
        " the first node starts a new cluster.",
    )
    discover_dns_name: str = _option(
        "discover-dns-name",
        "",
        str,
        "DNS name that resolves to the nodes, for --discover=dns; default in Kubernetes: the"
        " headless service.",
    )
    bootstrap: bool = _option(
        "bootstrap",
        "true",
        parse_flag,
        "Start a new single node, or a new cluster, when the data directory is empty; ignored"
        " with --join.",
    )
    log_level: str = _option(
        "log-level", "info", _choice(*LOG_LEVELS), "Lowest level that is logged."
    )
    log_format: str = _option("log-format", "text", _choice(*LOG_FORMATS), "Format of log lines.")
    shutdown_timeout_ns: int = _option(
        "shutdown-timeout",
        format_duration(limits.DRAIN_NS),
        _duration,
        "Time that requests in flight get to finish when the server stops.",
    )
    max_payload_size: int = _option(
        "max-payload-size",
        str(limits.PAYLOAD_SIZE_MAX),
        _size(1, BODY_SIZE_MAX),
        "Largest payload of a job: a number of bytes, or a size such as 1MB.",
    )
    max_result_size: int = _option(
        "max-result-size",
        str(limits.RESULT_SIZE_MAX),
        _size(1, BODY_SIZE_MAX),
        "Largest result of a job: a number of bytes, or a size such as 1MB.",
    )
    max_checkpoint_size: int = _option(
        "max-checkpoint-size",
        str(limits.CHECKPOINT_SIZE_MAX),
        _size(1, BODY_SIZE_MAX),
        "Largest checkpoint of a job: a number of bytes, or a size such as 1MB.",
    )
    max_body_size: int = _option(
        "max-body-size",
        str(limits.BODY_SIZE_MAX),
        _size(limits.KIB, BODY_SIZE_MAX),
        "Largest body of a request: a number of bytes, or a size such as 10MB.",
    )
    max_pending: int = _option(
        "max-pending",
        str(limits.PENDING_OPS_MAX),
        _number(1, 1_000_000),
        "Maximum number of writes in flight; further writes get status 429.",
        also="raft-max-pending",
    )
    stream_max_open: int = _option(
        "stream-max-open",
        str(limits.LIFECYCLE_OPEN_MAX),
        _number(0, 1_000_000),
        "Maximum number of open worker lifecycle streams; 0 = unlimited.",
    )
    stream_max_inflight: int = _option(
        "stream-max-inflight",
        str(limits.LIFECYCLE_IN_FLIGHT_MAX),
        _number(1, 1_000_000),
        "Maximum number of frames processed at once, over all lifecycle streams.",
    )
    stream_max_fps: int = _option(
        "stream-max-fps",
        str(limits.LIFECYCLE_FPS_MAX),
        _number(0, 1_000_000),
        "Maximum frames per second of one lifecycle stream; 0 = unlimited.",
    )
    idempotency_retention_ns: int = _option(
        "idempotency-retention",
        format_duration(limits.IDEMPOTENCY_KEPT_NS),
        _duration,
        "How long the response to a request with an Idempotency-Key is kept.",
    )
    idempotency_max_entries: int = _option(
        "idempotency-max-entries",
        str(limits.IDEMPOTENCY_ENTRIES),
        _number(1, limits.IDEMPOTENCY_ENTRIES_MAX),
        "Maximum number of responses kept for Idempotency-Keys.",
    )
    retention_ns: int = _option(
        "retention",
        format_duration(limits.RETENTION_DEFAULT_NS),
        _retention,
        "How long finished jobs are kept, unless their queue sets its own time; a duration, or"
        " forever.",
    )
    retention_completed_ns: int | None = _option(
        "retention-completed", "", _own_retention, "Overrides --retention for completed jobs."
    )
    retention_dead_ns: int | None = _option(
        "retention-dead", "", _own_retention, "Overrides --retention for dead jobs."
    )
    retention_cancelled_ns: int | None = _option(
        "retention-cancelled", "", _own_retention, "Overrides --retention for cancelled jobs."
    )
    retention_interval_ns: int = _option(
        "retention-interval",
        "1h",
        _duration,
        "How often the server purges jobs past their retention.",
    )
    mirror: bool = _option(
        "mirror",
        "true",
        parse_flag,
        "Run the search mirror in a separate process; needed by search, facets and bulk actions by"
        " filter.",
    )
    skip_entry: int = _option(
        "skip-entry", "0", _number(0, limits.DUE_MAX_NS), "Index of a log entry without effect."
    )
    test_clock: bool = _option(
        "test-clock",
        "false",
        parse_flag,
        "Let tests set the clock of this server; not for production.",
    )

    @property
    def clustered(self) -> bool:
        """Whether this server is configured as a cluster node."""
        return self.raft_bind is not None or bool(self.join or self.discover)

    @property
    def discover_name(self) -> str:
        """The DNS name that resolves to the nodes."""
        name = self.discover.partition(":")[2].partition(":")[0]
        return name or self.discover_dns_name

    @property
    def discover_port(self) -> int:
        """The port of the HTTP API at the addresses of `discover_name`."""
        port = self.discover.partition(":")[2].partition(":")[2]
        return int(port) if port else self.bind.port

    # Name, value and source of every setting; logged at the start.
    settings: tuple[tuple[str, str, str], ...] = ()
    # Given settings that this version does not support and ignores.
    ignored: tuple[str, ...] = ()
    # Variables of the environment that seem to be misspelled, each as a warning.
    misspelled: tuple[str, ...] = ()


def retention_by_ending(config: Config) -> list[int]:
    """Retention of finished jobs by end state, in the order of `model.END_STATES`."""
    own = config.retention_completed_ns, config.retention_dead_ns, config.retention_cancelled_ns
    return [config.retention_ns if keep_ns is None else keep_ns for keep_ns in own]


OPTIONS: Final[tuple[Option, ...]] = tuple(
    f.metadata["option"] for f in fields(Config) if "option" in f.metadata
)
CONFIG_OPTION: Final = Option("config", "", _text, "TOML file with the same settings.")

# Settings of other Corvo versions that are absent here: the reason, and the value that is harmless.
_SNAPSHOTS: Final = "this version takes snapshots automatically"
_ACCESS: Final = "access control is not part of this version"
_TRACING: Final = "tracing is not part of this version"
_RATES: Final = "rate limits per client are not part of this version"
ABSENT: Final[dict[str, tuple[str, str]]] = {
    "raft-shards": ("more than one shard is not part of this version", "1"),
    "snapshot-threshold": (_SNAPSHOTS, "0"),
    "admin-password": (_ACCESS, ""),
    "oidc-issuer-url": (_ACCESS, ""),
    "oidc-client-id": (_ACCESS, ""),
    "saml-header-auth": (_ACCESS, "false"),
    "saml-trusted-proxies": (_ACCESS, ""),
    "otel-enabled": (_TRACING, "false"),
    "otel-endpoint": (_TRACING, ""),
    "rate-limit-enabled": (_RATES, "false"),
    "rate-limit-read-rps": (_RATES, ""),
    "rate-limit-read-burst": (_RATES, ""),
    "rate-limit-write-rps": (_RATES, ""),
    "rate-limit-write-burst": (_RATES, ""),
    "docs-enabled": ("the API page is not part of this version", "false"),
    "lifecycle-events": ("event streams are not part of this version", "false"),
    "reclaim-max-attempts": ("a bound on reclaims is not part of this version", "0"),
}
# Tuning settings of other versions; this version needs no tuning here.
IGNORED: Final = (
    "raft-store",
    "apply-multi-mode",
    "fetch-poll-interval",
    "idle-fetch-sleep",
    "raft-max-fetch-inflight",
    "sqlite-mirror-async",
    "no-compression",
)

_OLDER: Final = {option.also: option.name for option in OPTIONS if option.also}
_REPEATABLE: Final = frozenset(option.name for option in OPTIONS if option.repeats)
# All accepted names. A newer name comes after its older one, so that its value wins.
NAMES: Final = (*_OLDER, *(option.name for option in OPTIONS), *ABSENT, *IGNORED)


def misspelled(environ: Mapping[str, str]) -> list[str]:
    """Describe each variable that seems to be a misspelled one of Corvo."""
    settings = (env_name(name) for name in (*NAMES, CONFIG_OPTION.name))
    return environment.misspelled(environ, {*settings, *environment.CLIENT_VARIABLES})


def load(flags: Mapping[str, str], environ: Mapping[str, str]) -> Config:
    """Load the effective settings. `flags` holds the given command-line options by name, as
    text."""
    given: dict[str, tuple[str, str]] = {}  # name -> text, source; later sources win
    path = flags.get("config") or environ.get(CONFIG_OPTION.env)
    if path:
        given |= _from_file(path)
    for name in NAMES:
        if text := environ.get(env_name(name)):  # empty counts as not given, as in compose files
            given[_OLDER.get(name, name)] = (text, env_name(name))
    for name, text in flags.items():
        if name != "config":
            given[_OLDER.get(name, name)] = (text, f"--{name}")
    _refuse_absent(given)
    values: dict[str, Any] = {}
    settings = []
    for item in fields(Config):
        option = item.metadata.get("option")
        if option is None:
            continue
        text, source = given.get(option.name) or _default(option, given, environ)
        try:
            values[item.name] = option.parse(text)
        except ValueError as error:
            shown = "..." if option.is_secret else ascii(text)
            raise ConfigError(f"{option.name} = {shown} (from {source}): want {error}") from None
        settings.append((option.name, "***" if option.is_secret and text else text, source))
    ignored = tuple(f"{name} (from {given[name][1]})" for name in IGNORED if name in given)
    config = Config(
        **values,
        settings=tuple(settings),
        ignored=ignored,
        misspelled=tuple(misspelled(environ)),
    )
    _check(config)
    return config


def _default(
    option: Option, given: Mapping[str, tuple[str, str]], environ: Mapping[str, str]
) -> tuple[str, str]:
    """The default of a setting.

    Nodes that use discovery are often started with identical settings, so the node id defaults to
    the host name there."""
    if given.get("discover", ("",))[0]:
        if option.name == "node-id":
            return socket.gethostname(), "host name"
        if option.name == "discover-dns-name" and "KUBERNETES_SERVICE_HOST" in environ:
            return socket.getfqdn().partition(".")[2], "host name"
    return option.default, "default"


def _from_file(path: str) -> dict[str, tuple[str, str]]:
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    given = {}
    for name, value in table.items():
        if name not in NAMES:
            raise ConfigError(f"unknown setting {cut(name)!a} in {path}{hint(name, NAMES)}")
        if name in _REPEATABLE and isinstance(value, list):
            value = ",".join(map(str, value))
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{name} (from {path}): want a string, a number, true or false")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        given[_OLDER.get(name, name)] = (text, path)
    return given


def _refuse_absent(given: Mapping[str, tuple[str, str]]) -> None:
    for name, (text, source) in given.items():
        if name not in NAMES:
            raise ConfigError(f"unknown setting {name!a} (from {source})")
        if name in ABSENT and text.lower() not in ("", ABSENT[name][1]):
            raise ConfigError(f"{name} (from {source}): {ABSENT[name][0]}")


def _check(config: Config) -> None:
    """Check rules that involve more than one setting."""
    if not config.bind.loopback and not config.insecure:
        source = next(source for name, _, source in config.settings if name == "bind")
        raise ConfigError(
            f"bind = {str(config.bind)!a} (from {source}) can be reached from other machines, and"
            " this version has no authentication: bind to 127.0.0.1 behind an authenticating proxy,"
            " or accept the risk with --insecure"
        )
    if bool(config.tls_cert) != bool(config.tls_key):
        raise ConfigError("tls-cert and tls-key must be set together")
    raft_tls = config.raft_tls_cert, config.raft_tls_key, config.raft_tls_ca
    if any(raft_tls) and not all(raft_tls):
        raise ConfigError("raft-tls-cert, raft-tls-key and raft-tls-ca must be set together")
    if config.join and config.discover:
        raise ConfigError("join and discover exclude each other: set only one")
    if config.discover and not config.discover_name:
        raise ConfigError("discover-dns-name is required when --discover=dns")
    if config.clustered and not config.cluster_secret:
        raise ConfigError(
            "a cluster node needs a cluster-secret, the same on all nodes: at least"
            f" {SECRET_SIZE_MIN} characters, preferably in {env_name('cluster-secret')}"
        )
    for name in ("payload", "result", "checkpoint"):
        size = getattr(config, f"max_{name}_size")
        if size > config.max_body_size:
            raise ConfigError(
                f"max-{name}-size = {size} exceeds max-body-size = {config.max_body_size}"
            )


def options_table() -> str:
    """The settings as a Markdown table, for docs/operate.md."""
    rows = ["| Flag | Environment | Default | Meaning |", "| --- | --- | --- | --- |"]
    for option in (*OPTIONS, CONFIG_OPTION):
        default = f"`{option.default}`" if option.default else ""
        rows.append(f"| `--{option.name}` | `{option.env}` | {default} | {option.help} |")
    return "\n".join(rows) + "\n"
