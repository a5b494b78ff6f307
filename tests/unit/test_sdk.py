"""The Python client has a method for every route, and an option for every field of a request."""

import inspect
import typing

import corvo_client.options as options
import pytest
from corvo_client.aio import AsyncClient
from corvo_client.api import Api
from corvo_client.client import Client
from corvo_client.endpoints import Endpoint, Stream
from lib.route_table import ROUTES

from corvo.engine.commands import inputs
from corvo.mirror.filters import PARSERS
from corvo.net.api import requests

PREFIX = "/api/v1"
# Routes that no method is for: the page of the root, and what only a node sends.
NOT_FOR_CLIENTS = {("GET", "/"), ("POST", "/cluster/join")}
# Methods for routes of servers that are newer than this one.
AHEAD = {("POST", "/jobs/bulk-get")}


def methods() -> dict[tuple[str, str], Endpoint | Stream]:
    found = {}
    for _, member in inspect.getmembers(Api):
        if isinstance(member, Endpoint | Stream) and member.path:
            assert (member.method, member.path) not in found, member.path
            found[member.method, member.path] = member
    return found


def table() -> dict[tuple[str, str], typing.Any]:
    rows = [row for row in ROUTES if not row.pattern.startswith("/corvo.v1.")]
    return {(row.method, row.pattern.removeprefix(PREFIX)): row for row in rows}


def test_every_route_has_a_method() -> None:
    assert set(methods()) - AHEAD == set(table()) - NOT_FOR_CLIENTS - AHEAD


def test_writes_carry_a_key_where_the_route_takes_one() -> None:
    rows = table()
    for route, method in methods().items():
        if isinstance(method, Endpoint) and route in rows:
            assert method.once == rows[route].takes_key, route


@pytest.mark.parametrize(
    ("mine", "theirs", "renamed"),
    [
        (options.EnqueueOptions, inputs.EnqueueBody, {"queue", "payload"}),
        (options.JobItem, inputs.EnqueueBody, {"wait"}),
        (options.BatchCallbacks, inputs.BatchBody, set()),
        (options.HoldOptions, inputs.HoldBody, set()),
        (options.Chain, inputs.ChainBody, set()),
        (options.AckItem, inputs.AckItem, set()),
        (options.BeatItem, inputs.Beat, set()),
        (options.LineItem, requests.LineBody, set()),
        (options.BulkOptions, requests.BulkBody, {"action", "async", "background"}),
        (options.ScheduleChanges, requests.ScheduleBody, set()),
    ],
)
def test_options_are_the_fields_of_the_server(
    mine: type, theirs: typing.Any, renamed: set[str]
) -> None:
    fields = set(theirs.__struct_encode_fields__)
    assert set(typing.get_type_hints(mine)) ^ fields <= renamed


def test_a_filter_has_the_fields_of_the_server() -> None:
    assert set(typing.get_type_hints(options.Filter)) == set(PARSERS)


def test_both_clients_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Client) == public(AsyncClient)
