"""Each example of the schema is valid, and each request in it can be sent as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator

from apps.api.examples import EXAMPLES
from apps.api.views.openapi_reference import schema
from apps.team.rights import Role
from tests.integration.api.calls_with_bodies import Call, calls, rows_of_examples
from tests.integration.api.schema_checking_client import closed_schema, person, program

pytestmark = pytest.mark.django_db

CALLS = {call.name: call for call in calls()}
# Bytes, and lines that docs/protocol.md shows.
WITHOUT_ONE = {"application/octet-stream", "application/vnd.poisonweb.skips+jsonl"}
# These are signed, and too large: an answer says so for the member.
REJECTED = {
    ("confirmRedrives", "Example"),
    ("reportFailures", "AMessageThatIsTooLarge"),
}


def bodies() -> Iterator[tuple[str, str, Any]]:
    """List the bodies of requests and good answers: the call, their type and shape."""
    for methods in schema()["paths"].values():
        for call in methods.values():
            answers = [
                answer for status, answer in call["responses"].items() if status < "300"
            ]
            for body in (call.get("requestBody", {}), *answers):
                for media_type, media in body.get("content", {}).items():
                    yield call["operationId"], media_type, media


def test_every_body_of_a_request_and_of_a_good_answer_has_an_example() -> None:
    without = [
        (name, media_type)
        for name, media_type, media in bodies()
        if media_type not in WITHOUT_ONE and not media.get("examples")
    ]

    assert without == []


def test_every_example_has_the_shape_that_it_is_an_example_of() -> None:
    number = 0
    for name, _, media in bodies():
        whole = {**media["schema"], "components": closed_schema()["components"]}
        for example in media.get("examples", {}).values():
            number += 1
            errors = Draft202012Validator(whole).iter_errors(example["value"])
            messages = [f"{error.json_path}: {error.message}" for error in errors]
            assert messages == [], name

    assert number > len(EXAMPLES)


def test_every_example_is_of_a_body() -> None:
    shapes = {
        *(component.removeprefix("Patched") for component in _components()),
        "STR",
    }

    assert EXAMPLES.keys() <= shapes


def _components() -> set[str]:
    components: dict[str, Any] = schema()["components"]["schemas"]
    return set(components)


@pytest.mark.parametrize(
    ("call", "example"),
    [(call, example) for call in CALLS.values() for example in call.examples],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_example_of_a_request_can_be_sent_as_it_is(
    call: Call, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_OURS", "redis://127.0.0.1:9")
    rows = rows_of_examples()

    reply = call.send(program(), rows, call.examples[example])

    assert reply.status in {200, 201, 202, 409}, reply.json
    if (call.name, example) not in REJECTED:
        assert "rejected" not in json.dumps(reply.json), reply.json


def test_the_page_shows_the_examples() -> None:
    client: Client = person(Role.VIEWER).client

    page = client.get("/api/v1/docs").content.decode()

    for name in ("reportFailures: Send: a message", "listPoisons: Answer 200"):
        assert f'aria-label="Example of {name}"' in page
    assert page.count('class="code"') >= sum(map(len, EXAMPLES.values()))
    assert "&quot;seq&quot;: 4711" in page
