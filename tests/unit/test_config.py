"""The settings: where they come from, and what is refused how."""

import dataclasses
from pathlib import Path

import pytest

from corvo import config
from corvo.config import Address, load
from corvo.errors import ConfigError


def test_defaults() -> None:
    settings = load({}, {})
    assert settings.bind == Address("127.0.0.1", 8080)
    assert settings.durable and settings.bootstrap
    assert not settings.insecure and not settings.test_clock
    assert settings.shutdown_timeout_ns == 500_000_000
    assert settings.max_payload_size == 256 * 1024
    assert {source for _, _, source in settings.settings} == {"default"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.durable = False  # type: ignore[misc]


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    path = tmp_path / "corvo.toml"
    path.write_text('data-dir = "file"\nnode-id = "file"\nlog-level = "warn"\ndurable = false\n')
    environ = {"CORVO_CONFIG": str(path), "CORVO_DATA_DIR": "env", "CORVO_NODE_ID": "env"}
    settings = load({"data-dir": "flag"}, environ | {"CORVO_LOG_FORMAT": "", "HOME": "/"})
    assert (settings.data_dir, settings.node_id, settings.log_level) == ("flag", "env", "warn")
    assert not settings.durable
    sources = {name: source for name, _, source in settings.settings}
    assert sources["data-dir"] == "--data-dir"
    assert sources["node-id"] == "CORVO_NODE_ID"
    assert sources["log-level"] == str(path)
    assert sources["log-format"] == "default"


def test_config_flag_beats_its_variable(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("max-body-size = 2097152\n")
    assert load({"config": str(path)}, {"CORVO_CONFIG": "absent"}).max_body_size == 2 << 20


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("127.0.0.2:1", "127.0.0.2", 1, "127.0.0.2:1"),
        ("localhost:0", "localhost", 0, "localhost:0"),
        ("[::1]:8080", "::1", 8080, "[::1]:8080"),
    ],
)
def test_loopback_addresses(text: str, host: str, port: int, shown: str) -> None:
    address = load({"bind": text}, {}).bind
    assert (address.host, address.port, str(address)) == (host, port, shown)


@pytest.mark.parametrize("text", [":8080", "0.0.0.0:80", "10.0.0.1:80", "[::]:80", "jobs.lan:80"])
def test_reachable_address_needs_insecure(text: str) -> None:
    with pytest.raises(ConfigError, match="from --bind.*--insecure"):
        load({"bind": text}, {})
    assert not load({"bind": text, "insecure": "true"}, {}).bind.loopback


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bind", "8080"),
        ("bind", "127.0.0.1:"),
        ("bind", "127.0.0.1:65536"),
        ("bind", "::1:8080"),
        ("bind", "http://127.0.0.1:8080"),
        ("data-dir", ""),
        ("durable", "maybe"),
        ("node-id", "a b"),
        ("node-id", "a/b"),
        ("raft-bind", "9000"),
        ("http-advertise", "nowhere"),
        ("log-level", "loud"),
        ("shutdown-timeout", "-1s"),
        ("shutdown-timeout", "soon"),
        ("max-payload-size", "256K"),
        ("max-payload-size", "1TB"),
        ("max-payload-size", "1GB"),
        ("max-payload-size", "1.0001kB"),
        ("max-payload-size", "MB"),
        ("max-payload-size", "0"),
        ("max-payload-size", "-1"),
        ("max-body-size", "999999999999"),
        ("max-pending", "9" * 40),
    ],
)
def test_error_names_setting_source_and_value(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({name: value}, {})
    assert str(refused.value).startswith(f"{name} = {value!a} (from --{name}): want ")


def test_error_from_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "corvo.toml"
    path.write_text("max-pending = true\n")
    with pytest.raises(ConfigError, match=r"^max-pending = 'true' \(from .*corvo.toml\): want"):
        load({"config": str(path)}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data-dri = 'x'", "unknown setting 'data-dri' in .*; did you mean data-dir?"),
        ("zzzzzz = 1", "unknown setting 'zzzzzz' in"),
        ("config = 'x'", "unknown setting 'config' in"),
        ("bind = ['a', 'b']", "bind .* want a string, a number, true or false"),
        ("bind = ", "is not TOML"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "corvo.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load({"config": str(path)}, {})


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read .*: No such file"):
        load({"config": str(tmp_path / "absent.toml")}, {})


def test_sizes_fit_into_the_body() -> None:
    with pytest.raises(ConfigError, match="max-result-size = 1048576 exceeds max-body-size"):
        load({"max-body-size": "524288"}, {})


@pytest.mark.parametrize("name", config.ABSENT)
def test_options_of_absent_parts_are_refused(name: str) -> None:
    reason, harmless = config.ABSENT[name]
    with pytest.raises(ConfigError, match=f"^{name} .*{reason}$"):
        load({name: "7"}, {})
    with pytest.raises(ConfigError, match=f"^{name} .*{config.env_name(name)}.*{reason}$"):
        load({}, {config.env_name(name): "true"})
    load({name: harmless}, {})


def test_options_without_meaning_are_ignored_and_named() -> None:
    settings = load({"raft-store": "pebble"}, {"CORVO_FETCH_POLL_INTERVAL": "1s"})
    assert settings.ignored == (
        "raft-store (from --raft-store)",
        "fetch-poll-interval (from CORVO_FETCH_POLL_INTERVAL)",
    )


def test_older_name_of_a_setting() -> None:
    assert load({"raft-max-pending": "7"}, {}).max_pending == 7
    both = {"CORVO_MAX_PENDING": "8", "CORVO_RAFT_MAX_PENDING": "9"}
    assert load({}, both).max_pending == 8
    assert load({"raft-max-pending": "7"}, both).max_pending == 7
    with pytest.raises(ConfigError, match="from --raft-max-pending"):
        load({"raft-max-pending": "x"}, {})


def test_unknown_flag() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'colour'"):
        load({"colour": "red"}, {})


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/operate.md").read_text()
    assert config.options_table() in page


def test_a_node_of_a_cluster_needs_a_secret_that_is_never_shown() -> None:
    for flags in ({"raft-bind": ":9000"}, {"join": "127.0.0.1:8080"}):
        with pytest.raises(ConfigError, match="cluster-secret.*at least 16 characters"):
            load(flags, {})
        with pytest.raises(
            ConfigError, match=r"cluster-secret = \.\.\. \(from CORVO_CLUSTER_SECRET"
        ):
            load(flags, {"CORVO_CLUSTER_SECRET": "short"})
        config = load(flags, {"CORVO_CLUSTER_SECRET": "a secret of the cluster"})
        assert config.clustered and config.cluster_secret == "a secret of the cluster"
        assert not any("a secret" in text for _, text, _ in config.settings)
    assert not load({}, {"CORVO_CLUSTER_SECRET": "a secret of the cluster"}).clustered


SECRET = {"CORVO_CLUSTER_SECRET": "a secret of the cluster"}


def test_tls_needs_all_its_files() -> None:
    with pytest.raises(ConfigError, match="must be set together"):
        load({"tls-key": "key.pem"}, {})
    pair = {"tls-cert": "cert.pem", "tls-key": "key.pem"}
    assert load(pair, {}).tls_cert == "cert.pem"
    load({**pair, "raft-bind": ":9000"}, SECRET)
    three = {f"raft-tls-{part}": "x.pem" for part in ("cert", "key", "ca")}
    assert load({**three, "raft-bind": ":9000"}, SECRET).raft_tls_ca == "x.pem"
    for left_out in three:
        two = {name: value for name, value in three.items() if name != left_out}
        with pytest.raises(ConfigError, match="must be set together"):
            load({**two, "raft-bind": ":9000"}, SECRET)


def test_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "corvo-1")
    monkeypatch.setattr("socket.getfqdn", lambda: "corvo-1.headless.ns.svc")
    named = load({"discover": "dns:nodes.example:81"}, SECRET)
    assert named.clustered and named.node_id == "corvo-1"
    assert (named.discover_name, named.discover_port) == ("nodes.example", 81)
    assert load({"discover": "dns:x", "node-id": "me"}, SECRET).node_id == "me"
    apart = load({"discover": "dns", "discover-dns-name": "x"}, SECRET)
    assert (apart.discover_name, apart.discover_port) == ("x", 8080)
    pod = load({"discover": "dns"}, {**SECRET, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert pod.discover_name == "headless.ns.svc"
    assert load({}, {}).node_id == "node-1"
    with pytest.raises(ConfigError, match="discover-dns-name is required when --discover=dns"):
        load({"discover": "dns"}, SECRET)
    with pytest.raises(ConfigError, match="exclude each other"):
        load({"discover": "dns:x", "join": "h:1"}, SECRET)
    for wrong in ("mdns", "dns:", "dns:x:", "dns:x:http"):
        with pytest.raises(ConfigError, match="other modes are not supported"):
            load({"discover": wrong}, SECRET)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("1000B", 1000),
        ("1kB", 1000),
        ("1MB", 1_000_000),
        ("1 mb", 1_000_000),
        ("256KiB", 256 << 10),
        ("2MiB", 2 << 20),
        ("1.5MB", 1_500_000),
        ("0.001GiB", None),
        ("0.001GB", 1_000_000),
    ],
)
@pytest.mark.parametrize("name", ["payload", "result", "checkpoint"])
def test_sizes(name: str, text: str, size: int | None) -> None:
    flags = {f"max-{name}-size": text, "max-body-size": "8MiB"}
    if size is None:
        with pytest.raises(ConfigError, match="a whole number of bytes"):
            load(flags, {})
    else:
        assert getattr(load(flags, {}), f"max_{name}_size") == size


def test_size_of_a_file_and_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "corvo.toml"
    path.write_text('max-body-size = "4MB"\n')
    settings = load({"config": str(path)}, {"CORVO_MAX_PAYLOAD_SIZE": "1MB"})
    assert (settings.max_body_size, settings.max_payload_size) == (4_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("variable", "known"),
    [
        ("CORVO_RETENTOIN", "CORVO_RETENTION"),
        ("CORVO_DATA_DIRR", "CORVO_DATA_DIR"),
        ("CORVO_DATADIR", "CORVO_DATA_DIR"),
        ("CORVO_CLUSTER_SECRT", "CORVO_CLUSTER_SECRET"),
        ("CORVO_SERVR", "CORVO_SERVER"),
        ("CORVO_ULR", None),
        ("CORVO_BIND", None),
        ("CORVO_MY_OWN_THING", None),
        ("CORVO_BUILD", None),
        ("CORVO_PORT", None),
        ("CORVO_SERVICE_HOST", None),
        ("CORVO_RAFT_PORT_9000_TCP_ADDR", None),
        ("RETENTOIN", None),
    ],
)
def test_a_misspelled_variable(variable: str, known: str | None) -> None:
    warning = f"nothing reads {variable}; did you mean {known}?"
    value = "127.0.0.1:1" if variable == "CORVO_BIND" else "x"
    settings = load({}, {variable: value})
    assert settings.misspelled == (() if known is None else (warning,))
