"""The schema is valid, describes every call, and has a page for people."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from apps.api.views import openapi_reference
from apps.api.views.openapi_reference import schema
from apps.audit.services import REASON_LIMIT
from apps.team.rights import Role, Scope
from tests.integration.api.schema_checking_client import anonymous, person, program
from tests.races import at_once

pytestmark = pytest.mark.django_db


def test_the_schema_is_generated_without_a_warning(tmp_path: Path) -> None:
    call_command(
        "spectacular", "--validate", "--fail-on-warn", "--file", tmp_path / "schema"
    )


def test_the_schema_is_served_as_openapi_3_1_to_any_key() -> None:
    reply = program(Scope.CAPTURE_WRITE).get("schema")

    validate_schema(reply.json)
    assert reply.json["openapi"].startswith("3.1")
    assert [server["url"] for server in reply.json["servers"]] == ["/"]
    assert reply.json == schema()
    assert anonymous().get("schema").status == 401


def test_eight_first_requests_at_once_generate_the_schema_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[bool]()

    def make(_: object, *, public: bool) -> dict[str, Any]:
        calls.append(public)
        time.sleep(0.05)
        return {}

    monkeypatch.setattr(SchemaGenerator, "get_schema", make)
    openapi_reference._generate.cache_clear()
    try:
        at_once(*[schema] * 8)
    finally:
        openapi_reference._generate.cache_clear()

    assert calls == [True]


def test_every_call_describes_its_scope_and_its_refusals() -> None:
    for path, methods in schema()["paths"].items():
        for call in methods.values():
            assert re.search(r"Needs the scope `[a-z]+:[a-z]+`", call["description"])
            assert {"401", "403", "503"} <= call["responses"].keys(), path


def test_no_line_of_a_description_is_indented_as_in_its_file() -> None:
    indented = [
        line
        for methods in schema()["paths"].values()
        for call in methods.values()
        for line in call["description"].splitlines()
        if line.startswith("        ")
    ]

    assert indented == []


def test_every_reason_that_a_call_takes_has_the_same_limit() -> None:
    requests = re.findall(r"'requestBody': .*?/schemas/(\w+)'", str(schema()["paths"]))
    shapes = schema()["components"]["schemas"]
    limits = {
        name: shapes[name]["properties"]["reason"]["maxLength"]
        for name in requests
        if "reason" in shapes[name].get("properties", {})
    }

    names = {
        *("Decision", "MoveAsk", "NewSkip", "NewTopic", "PatchedTopicChange"),
        *("Unskip", "BrokerRemoval", "TopicRemoval", "Control", "RateChange"),
        *("NewEndpoint", "PatchedEndpointChange", "EndpointRemoval"),
        *("DeliveryDecision", "NewOutbox", "PatchedOutboxChange", "OutboxRemoval"),
        *("RowDecision", "GiveUpDecision", "ResumeOptions"),
    }
    assert limits == dict.fromkeys(names, REASON_LIMIT)


def test_the_calls_that_act_take_an_idempotency_key() -> None:
    acting = {
        call["operationId"]
        for methods in schema()["paths"].values()
        for call in methods.values()
        for parameter in call.get("parameters", ())
        if parameter["name"] == "Idempotency-Key"
    }

    assert acting == {
        "reportFailures",
        "confirmRedrives",
        "countMessages",
        "confirmOperation",
        "undoOperation",
        "pauseOperation",
        "resumeOperation",
        "cancelOperation",
        "setOperationRate",
        "acknowledgeOperation",
        "addSkip",
        "addBroker",
        "registerTopic",
        "openPositions",
        "settlePositions",
        "movePosition",
        "addEndpoint",
        "retryDeliveries",
        "giveUpDeliveries",
        "restoreDeliveries",
    }


def test_the_page_shows_every_call_and_shape_under_the_strict_policy() -> None:
    response = person(Role.VIEWER).client.get("/api/v1/docs")

    page = response.content.decode()
    names = re.findall(r'"operationId": "(\w+)"', str(schema()).replace("'", '"'))
    assert response.status_code == 200
    assert names
    assert [name for name in names if f'id="{name}"' not in page] == []
    assert set(re.findall(r'href="#(shape-\w+)"', page)) <= set(
        re.findall(r'id="(shape-\w+)"', page)
    )
    assert not re.search(r"<style|style=|<script(?![^>]* src=)|\son\w+=", page)
    assert "script-src 'self'" in response["Content-Security-Policy"]


def test_the_page_asks_for_a_sign_in() -> None:
    response = Client().get("/api/v1/docs")

    assert (response.status_code, response["Location"]) == (
        302,
        "/sign-in?next=/api/v1/docs",
    )
