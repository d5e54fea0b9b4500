"""Authentication, scopes, and the form of errors."""

from __future__ import annotations

import logging
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory

from apps.api import error_responses
from apps.api.permissions import SIGNED_IN
from apps.api.request_exceptions import Malformed
from apps.api.views.base import View
from apps.api.views.openapi_reference import schema
from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import (
    Absent,
    Forbidden,
    Invalid,
    PoisonwebError,
    Refused,
    Unavailable,
)
from apps.team import services as team
from apps.team.models import User
from apps.team.rights import Role, Scope
from tests.integration.api.schema_checking_client import (
    Caller,
    anonymous,
    person,
    program,
)

pytestmark = pytest.mark.django_db

# The id of a delivery that is not there.
NO_DELIVERY = "00000000-0000-7000-8000-000000000000"
# Every call, and the scope that it requires.
NEEDED = {
    "POST failures": Scope.CAPTURE_WRITE,
    "POST confirmations": Scope.CAPTURE_WRITE,
    "POST counters": Scope.CAPTURE_WRITE,
    "GET poisons": Scope.POISONS_READ,
    "GET poisons/1": Scope.POISONS_READ,
    "GET poisons/1/body": Scope.BODIES_READ,
    "POST poisons/1/body": Scope.BODIES_READ,
    "GET problems": Scope.PROBLEMS_READ,
    "GET problems/1": Scope.PROBLEMS_READ,
    "GET operations": Scope.OPERATIONS_READ,
    "POST operations": Scope.OPERATIONS_WRITE,
    "GET operations/preview": Scope.OPERATIONS_WRITE,
    "POST operations/preview": Scope.OPERATIONS_WRITE,
    "GET operations/1": Scope.OPERATIONS_READ,
    "GET operations/1/items": Scope.OPERATIONS_READ,
    "POST operations/1/undo": Scope.OPERATIONS_WRITE,
    "POST operations/1/pause": Scope.OPERATIONS_WRITE,
    "POST operations/1/resume": Scope.OPERATIONS_WRITE,
    "POST operations/1/cancel": Scope.OPERATIONS_WRITE,
    "POST operations/1/acknowledge": Scope.OPERATIONS_WRITE,
    "POST operations/1/rate": Scope.OPERATIONS_WRITE,
    "POST operations/1/retry-failed": Scope.OPERATIONS_WRITE,
    "GET skips": Scope.SKIPS_READ,
    "POST skips": Scope.SKIPS_WRITE,
    "DELETE skips/1": Scope.SKIPS_WRITE,
    "POST skips/applied": Scope.CAPTURE_WRITE,
    "GET skips/stream": Scope.SKIPS_READ,
    "GET positions": Scope.POSITIONS_READ,
    "POST positions/open": Scope.POSITIONS_WRITE,
    "POST positions/settle": Scope.POSITIONS_WRITE,
    "POST positions/1/move": Scope.POSITIONS_WRITE,
    "GET brokers": Scope.BROKERS_READ,
    "POST brokers": Scope.BROKERS_WRITE,
    "GET brokers/1": Scope.BROKERS_READ,
    "PATCH brokers/1": Scope.BROKERS_WRITE,
    "DELETE brokers/1": Scope.BROKERS_WRITE,
    "POST brokers/1/test": Scope.BROKERS_WRITE,
    "GET brokers/1/discover": Scope.BROKERS_READ,
    "POST brokers/1/discover": Scope.BROKERS_READ,
    "GET topics": Scope.BROKERS_READ,
    "POST topics": Scope.BROKERS_WRITE,
    "PATCH topics": Scope.BROKERS_WRITE,
    "DELETE topics": Scope.BROKERS_WRITE,
    "GET endpoints": Scope.BROKERS_READ,
    "POST endpoints": Scope.BROKERS_WRITE,
    "GET endpoints/1": Scope.BROKERS_READ,
    "PATCH endpoints/1": Scope.BROKERS_WRITE,
    "DELETE endpoints/1": Scope.BROKERS_WRITE,
    "GET outboxes": Scope.BROKERS_READ,
    "POST outboxes": Scope.BROKERS_WRITE,
    "GET outboxes/1": Scope.BROKERS_READ,
    "PATCH outboxes/1": Scope.BROKERS_WRITE,
    "DELETE outboxes/1": Scope.BROKERS_WRITE,
    "GET outboxes/1/findings": Scope.BROKERS_READ,
    "GET outboxes/1/rows": Scope.POISONS_READ,
    "POST outboxes/1/rows/1/send": Scope.OPERATIONS_WRITE,
    "POST outboxes/1/rows/1/drop": Scope.OPERATIONS_WRITE,
    "GET deliveries": Scope.POISONS_READ,
    f"GET deliveries/{NO_DELIVERY}": Scope.POISONS_READ,
    f"GET deliveries/{NO_DELIVERY}/body": Scope.BODIES_READ,
    f"POST deliveries/{NO_DELIVERY}/body": Scope.BODIES_READ,
    "POST deliveries/retry": Scope.OPERATIONS_WRITE,
    "POST deliveries/give-up": Scope.OPERATIONS_WRITE,
    "POST deliveries/restore": Scope.OPERATIONS_WRITE,
    "GET audit": Scope.AUDIT_READ,
    "GET audit/verify": Scope.AUDIT_READ,
    "GET reports/failure-rates": Scope.REPORTS_READ,
    "GET reports/endpoints": Scope.REPORTS_READ,
    "GET reports/runs": Scope.REPORTS_READ,
}
each_call = pytest.mark.parametrize("call", NEEDED)


def test_the_table_of_scopes_has_every_call() -> None:
    described = {
        f"{method.upper()} {path.removeprefix('/api/v1/')}"
        for path, methods in schema()["paths"].items()
        for method in methods
    }

    expected = {
        re.sub(r"(\w+?)(e?s)/1", r"\1\2/{\1_id}", call).replace(
            NO_DELIVERY, "{delivery_id}"
        )
        for call in NEEDED
    }
    assert described == expected


@each_call
def test_a_call_without_a_sign_in_is_a_401(call: str) -> None:
    method, path = call.split()

    reply = anonymous().send(method, path, raw=b"{}")

    assert reply.status == 401
    assert reply.response["WWW-Authenticate"] == "Bearer"


@each_call
def test_a_call_asks_for_its_own_scope_and_no_other(call: str) -> None:
    method, path = call.split()
    needed = NEEDED[call]
    others = program(*(set(Scope) - {needed}))
    allowed = program(needed)

    refused = others.send(method, path, raw=b"{}")

    assert (refused.status, needed in refused.detail) == (403, True)
    assert allowed.send(method, path, raw=b"{}").status not in {401, 403, 500}


@pytest.mark.parametrize(
    "value",
    [
        "Bearer",
        "Bearer ",
        "Bearer pw_local_wrong",
        "Bearer ü\xff",
        "bearer x y z",
        "Basic YTpi",
        "pw_local_x",
        "Bearer " + "x" * 100_000,
    ],
)
def test_an_unknown_key_is_a_401(value: str) -> None:
    caller = Caller(client=Client(), headers={"Authorization": value})

    assert caller.get("poisons").status == 401


def test_a_bad_key_does_not_fall_back_to_the_session() -> None:
    signed_in = person()
    caller = Caller(client=signed_in.client, headers={"Authorization": "Bearer x"})

    assert signed_in.get("poisons").status == 200
    assert caller.get("poisons").status == 401


def test_an_expired_or_revoked_key_is_a_401() -> None:
    now, actor = clock.now(), Actor.system("test")
    keys = [
        team.create_api_key(
            name=name,
            scopes=list(Scope),
            expires_at=ends,
            actor=actor,
            now=now - timedelta(hours=2),
        )
        for name, ends in (("short", now - timedelta(hours=1)), ("revoked", None))
    ]
    team.revoke_api_key(name="revoked", actor=actor, now=now)

    replies = [
        Caller(client=Client(), headers={"Authorization": f"Bearer {each.secret}"}).get(
            "poisons"
        )
        for each in keys
    ]

    assert [each.status for each in replies] == [401, 401]


def test_a_session_needs_the_csrf_token_to_act_and_not_to_read() -> None:
    signed_in = person()
    bare = Caller(client=signed_in.client)

    reply = bare.post("operations/preview", {"verb": "redrive", "q": ""})

    assert (reply.status, "CSRF" in reply.detail) == (403, True)
    assert bare.get("operations").status == 200
    allowed = signed_in.post("operations/preview", {"verb": "redrive", "q": ""})
    assert allowed.status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["poisons/1/body", "brokers/1/discover"])
def test_a_link_followed_with_a_session_reads_no_body_and_no_broker(
    method: str, path: str
) -> None:
    """A link on another site sends the session: its author would act as the person."""
    signed_in = person(Role.ADMIN, reads_bodies=True)

    refused = signed_in.client.generic(method, f"/api/v1/{path}")

    assert refused.status_code == 403
    assert program().get(path).status == 404
    assert signed_in.post(path).status == 404
    assert Caller(client=signed_in.client).post(path).status == 403


def test_a_deactivated_person_is_refused_at_once() -> None:
    caller = person()
    User.objects.update(is_active=False)

    assert caller.get("poisons").status == 401


def test_a_viewer_reads_and_does_not_act() -> None:
    caller = person(Role.VIEWER)

    assert caller.get("problems").status == 200
    assert caller.post("operations/preview", {"verb": "drop", "q": ""}).status == 403


@pytest.mark.parametrize("path", ["", "zebra", "poisons/", "poisons/x", "../api/v1/x"])
def test_an_unknown_address_is_a_404_with_a_key_and_a_401_without(path: str) -> None:
    assert program().get(path).status == 404
    assert program(Scope.AUDIT_READ).post(path, {}).status == 404
    assert anonymous().get(path).status == 401


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "X"])
@pytest.mark.parametrize("path", ["poisons", "failures", "operations/1/undo", "zebra"])
def test_another_method_is_a_405(path: str, method: str) -> None:
    reply = program().send(method, path)

    assert reply.status == 405
    assert "OPTIONS" not in reply.response["Allow"]


def test_a_get_of_a_path_for_posts_is_a_405() -> None:
    assert program().get("failures").status == 405
    assert program(Scope.AUDIT_READ).post("poisons", {}).status == 405


def test_a_head_is_a_get_without_a_body() -> None:
    response = program(Scope.POISONS_READ).client.head(
        "/api/v1/poisons", headers=program(Scope.AUDIT_READ).headers
    )

    assert response.status_code == 403
    assert program().client.head("/api/v1/poisons").status_code == 401


def test_a_view_without_scopes_refuses_every_caller() -> None:
    class Careless(View):
        def get(self, _: Request) -> Response:
            return Response("in")

    class Scoped(Careless):
        scopes = {"GET": SIGNED_IN}

    responses = [_through(view) for view in (Careless, Scoped)]

    assert [each.status_code for each in responses] == [403, 200]


class Broken(View):
    """Raise the given error."""

    scopes = {"GET": SIGNED_IN}
    error: Exception = NotFound()

    def get(self, _: Request) -> Response:
        raise self.error


def _through(view: type[View], **initial: object) -> Response:
    headers = program().headers
    request = APIRequestFactory().get("/", headers=headers)
    response: Response = view.as_view(**initial)(request)
    return response


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Malformed("a", "b"), 400, "urn:poisonweb:problem:malformed"),
        (Forbidden(), 403, "urn:poisonweb:problem:forbidden"),
        (Absent(), 404, "urn:poisonweb:problem:absent"),
        (Refused(), 409, "urn:poisonweb:problem:refused"),
        (Unavailable(), 503, "urn:poisonweb:problem:unavailable"),
        (NotFound(), 404, "about:blank"),
        (PoisonwebError("x"), 500, "urn:poisonweb:problem:poisonweb-error"),
        (ZeroDivisionError("secret"), 500, "about:blank"),
    ],
)
def test_each_error_has_its_status_and_type(
    error: Exception, status: int, kind: str
) -> None:
    response = _through(Broken, error=error)

    assert (response.status_code, response.data["type"]) == (status, kind)


@pytest.mark.parametrize("kind", [ZeroDivisionError, PoisonwebError])
def test_an_unexpected_error_shows_only_its_request_id(
    caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    with caplog.at_level(logging.ERROR, logger=error_responses.__name__):
        response = _through(Broken, error=kind("secret"))

    assert "secret" not in str(response.data)
    assert "secret" in caplog.text
    assert response.data["request_id"] in caplog.text


def test_an_error_that_quotes_half_a_surrogate_can_be_written() -> None:
    response = _through(Broken, error=Invalid("q", "no \ud800 here"))

    assert b"no \xef\xbf\xbd" in response.render().content


def test_no_call_takes_a_topic_or_bookmark_in_its_path() -> None:
    routes = "".join(_routes(get_resolver()))

    assert "api/v1/" in routes
    assert "<str:" not in routes
    assert "<slug:" not in routes


def _routes(resolver: URLResolver) -> list[str]:
    routes = []
    for pattern in resolver.url_patterns:
        routes.append(str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            routes += _routes(pattern)
        assert isinstance(pattern, URLPattern | URLResolver)
    return routes
