"""Every parameter in the query of an address at its documented limits, and beyond.

The parameters and their limits come from the schema, as in `test_boundaries`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from apps.api.views.openapi_reference import schema
from apps.brokers.models import Broker
from tests.integration.api.calls_with_bodies import Spec, rows_of_examples
from tests.integration.api.schema_checking_client import Caller
from tests.integration.api.test_boundaries import (
    Edge,
    is_unlimited,
    number_edges,
    resolved,
    text_edges,
    type_of,
)

pytestmark = pytest.mark.django_db

# Values of the parameters that a call requires.
REQUIRED = {"token": "00000000-0000-4000-8000-000000000000", "topic": "orders"}
OF_FORMAT = {"date": "2026-11-20", "uuid": REQUIRED["token"]}
A_TIME = "a day or a time, which no format of OpenAPI describes"
# Texts without a limit of their own, and why they have none.
UNBOUNDED = {
    **dict.fromkeys(("listAuditEntries.from", "listAuditEntries.to"), A_TIME),
    **{f"listDeliveries.{name}": A_TIME for name in ("since", "until", "due")},
    "followSkips.after": "the id of an event; an unknown one is followed by all skips",
}

# Consumers of a later release send them parameters that this server does not know.
TAKE_ANY = {"listSkips", "followSkips"}


def calls() -> Iterator[tuple[str, str, list[Spec]]]:
    """Give the name and the path of each call with a query, and its parameters."""
    for path, methods in schema()["paths"].items():
        for call in methods.values():
            parameters = [
                each for each in call.get("parameters", ()) if each["in"] == "query"
            ]
            if parameters:
                yield call["operationId"], path, parameters


CALLS = {name: (path, parameters) for name, path, parameters in calls()}


def shape_of(parameter: Spec) -> Spec:
    """Give the description of one value of a parameter."""
    shape, _ = resolved(parameter["schema"])
    return shape["items"] if type_of(shape) == "array" else shape


def edges(shape: Spec) -> Iterator[Edge]:
    """List values of a parameter as text: a label, the text, and whether it may be."""
    if type_of(shape) == "integer":
        for label, value, is_allowed in number_edges(shape):
            yield label, str(value), is_allowed
        for wrong in ("x", "1.5", "true", "1_0", "9" * 5_000):
            yield f"another type, {wrong[:9]!r}", wrong, False
    else:
        yield from text_edges(shape)
        if not is_unlimited(shape):
            yield "a NUL", "a\0", False
    if (form := shape.get("format")) in OF_FORMAT:
        yield f"a {form}", OF_FORMAT[form], True


@pytest.fixture
def rows() -> Mapping[str, int]:
    """Create what the calls list, with a broker and tables that can be read."""
    ids = rows_of_examples()
    Broker.objects.update(kind="redis_streams")
    return ids


@pytest.mark.parametrize("name", CALLS)
def test_each_parameter_is_taken_at_its_limits_and_refused_with_its_name_beyond(
    caller: Caller, rows: Mapping[str, int], name: str
) -> None:
    template, parameters = CALLS[name]
    path = re.sub(r"\{(\w+)\}", lambda match: str(rows[match[1]]), template)

    wrong = [
        f"{parameter['name']}: {label} is {'refused' if is_allowed else 'taken'}"
        for parameter in parameters
        for label, text, is_allowed in edges(shape_of(parameter))
        if is_taken(caller, path, parameters, parameter, text) != is_allowed
    ]

    assert wrong == []


@pytest.mark.parametrize("name", sorted(CALLS.keys() - TAKE_ANY))
@pytest.mark.parametrize("unknown", ["topci", "a/b~\0é"])
def test_an_unknown_parameter_is_refused_with_its_name_and_those_there_are(
    caller: Caller, rows: Mapping[str, int], name: str, unknown: str
) -> None:
    template, parameters = CALLS[name]
    path = re.sub(r"\{(\w+)\}", lambda match: str(rows[match[1]]), template)
    query = {each: REQUIRED[each] for each in required_of(parameters)}

    reply = caller.send("GET", path, query={**query, unknown: "1"})

    there = ", ".join(sorted(each["name"] for each in parameters))
    pointer = "/" + unknown.replace("~", "~0").replace("/", "~1").replace(
        "\0", "\N{SYMBOL FOR NULL}"
    )
    assert (reply.status, reply.pointers) == (422, [pointer])
    assert reply.json["errors"][0]["detail"].endswith(f"there are {there}")


@pytest.mark.parametrize("name", sorted(TAKE_ANY))
def test_a_call_of_the_protocol_ignores_unknown_parameters(
    caller: Caller, rows: Mapping[str, int], name: str
) -> None:
    path, _ = CALLS[name]

    reply = caller.send("GET", path, query={"topic": "orders", "later": "1"})

    assert reply.status not in {400, 422}


def is_taken(
    caller: Caller, path: str, parameters: list[Spec], parameter: Spec, text: str
) -> bool:
    """Send a value; tell whether the answer does not refuse it by its name."""
    needed: Mapping[str, Any] = {
        each: REQUIRED[each] for each in required_of(parameters)
    }
    reply = caller.send("GET", path, query={**needed, parameter["name"]: text})
    assert reply.status != 500
    if reply.status not in {400, 422}:
        return True
    assert reply.pointers == [f"/{parameter['name']}"]
    return False


def required_of(parameters: list[Spec]) -> Iterator[str]:
    """Name the parameters that a call requires."""
    return (each["name"] for each in parameters if each.get("required"))


def test_every_parameter_has_limits_or_a_reason_to_have_none() -> None:
    unlimited = {
        f"{name}.{parameter['name']}"
        for name, (_, parameters) in CALLS.items()
        for parameter in parameters
        if parameter["name"] != "cursor" and is_unlimited(shape_of(parameter))
    }

    assert unlimited == UNBOUNDED.keys()
