"""Names, addresses and proofs of nodes, and joining a cluster that is not there."""

import os
from typing import Any

import pytest

from corvo.config import load
from corvo.consensus.cluster.discovery import Discovery
from corvo.consensus.cluster.membership import (
    Members,
    NodeAddresses,
    addresses,
    decode_addresses,
    encode_addresses,
    http_address,
    node_name,
    peers_of,
    proof,
)
from corvo.consensus.raft.membership import ADD_LEARNER, PROMOTE, REMOVE, UPDATE, Change
from corvo.consensus.raft.messages import ConfState
from corvo.errors import Conflict, CorvoError, Forbidden, NotFound

SECRET = {"CORVO_CLUSTER_SECRET": "a secret of the cluster"}
HERE = NodeAddresses("h:1", "h:2")


class Log:
    """Notes changes, and answers them at once."""

    node_id = "a/1"
    leading = True

    def __init__(self) -> None:
        contexts = {"a/1": encode_addresses(HERE)}
        self.conf = ConfState(["a/1", "b/2"], ["c/3"], contexts)
        self.changes: list[tuple[int, str, bytes]] = []
        self.error: CorvoError | None = None

    def change(self, change: Change, answer: Any) -> None:
        self.changes.append((change.kind, change.node_id, change.context))
        answer(self.error)


class Loop:
    """Runs nothing."""

    def call_later(self, *_: Any) -> None:
        pass


def members(log: Log) -> Members:
    config = load({"raft-bind": "127.0.0.1:9000"}, SECRET)
    made: Any = log
    return Members(config, "f" * 32, made, Loop(), Discovery(config, os.urandom))


def test_names_and_addresses() -> None:
    assert node_name("node-1/0123") == "node-1" and node_name("odd") == "odd"
    assert decode_addresses(encode_addresses(HERE)) == HERE
    assert decode_addresses(b"") == ("", "")
    conf = Log().conf
    assert peers_of(conf, "b/2") == {"a/1": "h:1", "c/3": ""}
    assert http_address(conf, "a/1") == "h:2" and http_address(conf, "z") == ""


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"raft-bind": "127.0.0.1:9000"}, ("127.0.0.1:9000", "127.0.0.1:8080")),
        ({"raft-bind": ":9000"}, ("127.0.0.1:9000", "127.0.0.1:8080")),
        ({"raft-bind": ":9000", "raft-advertise": "n:7"}, ("n:7", "127.0.0.1:8080")),
        ({"raft-bind": "x:1", "http-advertise": "n:7"}, ("x:1", "n:7")),
        (
            {"raft-bind": "x:1", "bind": ":80", "insecure": "true"},
            ("x:1", "x:80"),
        ),
        ({"join": "127.0.0.1:8080"}, ("127.0.0.1:9000", "127.0.0.1:8080")),
        ({"discover": "dns:127.0.0.1"}, ("127.0.0.1:9000", "127.0.0.1:8080")),
        (
            {"raft-bind": "x:1", "tls-cert": "c", "tls-key": "k"},
            ("x:1", "https://127.0.0.1:8080"),
        ),
    ],
)
def test_what_a_node_says_of_itself(flags: dict[str, str], expected: tuple[str, str]) -> None:
    config = load(flags, SECRET)
    assert addresses(config, config.bind) == expected


def test_a_proof_is_of_these_facts() -> None:
    known = members(Log())
    given = proof(SECRET["CORVO_CLUSTER_SECRET"], "a", "b")
    known.check_proof(given, "a", "b")
    for facts in (("a", "c"), ("ab",), ("a", "b", "")):
        with pytest.raises(Forbidden):
            known.check_proof(given, *facts)
    with pytest.raises(Forbidden):
        known.check_proof("", "a", "b")


def test_adding_and_removing() -> None:
    log = Log()
    known = members(log)
    answers: list[Any] = []
    known.add("a/1", *HERE, answers.append)
    assert (log.changes, answers) == ([], [False])
    elsewhere = NodeAddresses("i:1", "i:2")
    known.add("a/1", *elsewhere, answers.append)
    known.add("d/4", *HERE, answers.append)
    with pytest.raises(Conflict, match="another node 'b' is already in the cluster"):
        known.add("b/9", *HERE, answers.append)
    known.remove("b", answers.append)
    known.promote("c", answers.append)
    known.promote("a", answers.append)
    log.error = Conflict("not now")
    known.add("e/5", *HERE, answers.append)
    with pytest.raises(NotFound):
        known.remove("z", answers.append)
    assert log.changes == [
        (UPDATE, "a/1", encode_addresses(elsewhere)),
        (ADD_LEARNER, "d/4", encode_addresses(HERE)),
        (REMOVE, "b/2", b""),
        (PROMOTE, "c/3", b""),
        (ADD_LEARNER, "e/5", encode_addresses(HERE)),
    ]
    assert answers == [False, False, True, None, None, None, log.error]


def test_learners_are_promoted_by_whoever_leads() -> None:
    log = Log()
    known = members(log)
    known.start(HERE)
    assert log.changes == [(PROMOTE, "c/3", b"")]
    log.leading = False
    known.start(HERE)
    assert len(log.changes) == 1


def test_who_was_removed_does_not_ask_to_come_back(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    log.conf = ConfState(["b/2"])
    members(log).start(HERE)
    assert "was removed" in caplog.text
