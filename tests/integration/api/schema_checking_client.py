"""A client of the API that checks every answer against the OpenAPI schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import count
from typing import Any

from django.http import HttpResponse
from django.test import Client
from jsonschema import Draft202012Validator

from apps.api.views.openapi_reference import schema
from apps.core import clock
from apps.core.actor import Actor
from apps.team import services as team
from apps.team.rights import ALL_TOPICS, Role, Scope

ROOT = "/api/v1/"
_numbers = count(1)
PASSWORD = "correct horse battery staple"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A client of the API, with a key or a session."""

    client: Client
    headers: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str, **query: object) -> Reply:
        return self.send("GET", path, query=query)

    def post(self, path: str, body: object = None, **headers: str) -> Reply:
        """Post a value as JSON; bytes are sent as they are."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", path, raw=raw, headers=named)

    def send(
        self,
        method: str,
        path: str,
        *,
        raw: bytes = b"",
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Reply:
        path = path if path.startswith("/") else ROOT + path
        response: Any = self.client.generic(
            method,
            path,
            raw,
            content_type=content_type,
            query_params=query,
            headers={**self.headers, **(headers or {})},
        )
        reply = Reply(method=method, path=path, response=response)
        reply.check()
        return reply


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of the API, checked against the schema."""

    method: str
    path: str
    response: HttpResponse

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def json(self) -> Any:
        return json.loads(self.response.content)

    @property
    def results(self) -> list[Any]:
        assert self.status == 200, self.json
        rows: list[Any] = self.json["results"]
        return rows

    @property
    def detail(self) -> str:
        text: str = self.json["detail"]
        return text

    @property
    def pointers(self) -> list[str]:
        return [error["pointer"] for error in self.json["errors"]]

    def check(self) -> None:
        assert self.response["Cache-Control"] == "no-store"
        media_type = self.response["Content-Type"].partition(";")[0]
        if self.status >= 400:
            assert media_type == "application/problem+json", self.response.content
            assert self.json["status"] == self.status
            assert self.json["request_id"] == self.response["X-Request-Id"]
            _validate({"$ref": "#/components/schemas/StaleProblem"}, self.json)
        operation = _operation(self.method, self.path)
        if operation is None or self.status in {405, 500}:
            return  # the schema has no entry for it
        shape = operation["responses"][str(self.status)]["content"][media_type][
            "schema"
        ]
        if media_type.endswith("json"):
            _validate(shape, self.json)


def program(
    *scopes: Scope, topics: Sequence[str] = ALL_TOPICS, now: datetime | None = None
) -> Caller:
    """Give a caller with a new key, which has every scope if none is named."""
    key = team.create_api_key(
        name=f"key {next(_numbers)}",
        scopes=scopes or list(Scope),
        topics=topics,
        actor=Actor.system("test"),
        now=now or clock.now(),
    )
    return Caller(client=Client(), headers={"Authorization": f"Bearer {key.secret}"})


def person(role: Role = Role.OPERATOR, *, reads_bodies: bool = False) -> Caller:
    """Give a caller with a session, whose client sends the CSRF token."""
    user = team.create_user(
        username=role.value,
        password=PASSWORD,
        role=role,
        reads_bodies=reads_bodies,
        actor=Actor.system("test"),
        now=clock.now(),
    )
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    token = "a" * 32
    client.cookies["pw_csrf"] = token
    return Caller(client=client, headers={"X-CSRFToken": token})


def anonymous() -> Caller:
    return Caller(client=Client())


@cache
def closed_schema() -> dict[str, Any]:
    """Give the schema with every object closed: an undocumented member is an error."""
    closed: dict[str, Any] = json.loads(json.dumps(schema()))
    for shape in closed["components"]["schemas"].values():
        if "properties" in shape:
            shape["additionalProperties"] = False
    return closed


@cache
def _validator(shape: str) -> Draft202012Validator:
    """Cache a validator for each shape: creating one reads the whole schema."""
    whole = {**json.loads(shape), "components": closed_schema()["components"]}
    return Draft202012Validator(whole)


def _operation(method: str, path: str) -> Any:
    for template, methods in schema()["paths"].items():
        pattern = re.sub(r"\{[^}]+\}", r"(\\d+|[0-9a-f-]{36})", template)
        if re.fullmatch(pattern, path):
            return methods.get(method.lower())
    return None


def _validate(shape: Mapping[str, Any], value: object) -> None:
    errors = _validator(json.dumps(shape)).iter_errors(value)
    assert not [f"{error.json_path}: {error.message}" for error in errors]
