"""What the OpenAPI schema says of a call beyond what its code does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar, cast

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.serializers import Serializer

from apps.api.errors import MEDIA_TYPE
from apps.api.idempotency import HEADER
from apps.api.paging import DEFAULT_LIMIT, MOST_LIMIT
from apps.api.parameters.reports import By
from apps.api.schemas import brokers, operations, skips, topics
from apps.api.schemas.errors import Problem, StaleProblem
from apps.api.views.base import View
from apps.audit.filters import PARAMETERS
from apps.team.rights import Scope
from poisonguard.skipping import skip_lines

Method = TypeVar("Method", bound=Callable[..., Any])
Shape = type[Serializer[Any]]

ALWAYS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE)
WITH_A_BODY = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
EVENT_STREAM = "text/event-stream"
# What an Idempotency-Key can be refused for, and a decision too.
REFUSED_KEY = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


def _text(name: str, description: str, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(name, str, description=description, required=required)


Q = _text(
    "q",
    "is:open|sent|handled|dropped day: topic: problem: consumer: cause: error:, joined"
    " by AND; ! negates, quotes hold spaces, * stands for any text",
)
PAGING = (
    _text("cursor", "the `next` of the page before"),
    OpenApiParameter(
        "limit", int, description=f"1 to {MOST_LIMIT}; {DEFAULT_LIMIT} if left out"
    ),
)
TRAIL = tuple(_text(name, takes) for name, takes in PARAMETERS.items())
RATES = (
    _text("topic", "the name of one; all that the key sees if left out"),
    _text("from", "the first UTC day, 27 days before the last if left out"),
    _text("to", "the last UTC day, included; the newest that is over if left out"),
    OpenApiParameter("by", enum=list(By), description="day if left out"),
    _text(
        "consumer_group",
        "the name of one, which may be empty; all of a topic together if left out",
    ),
)
POSITIONS = (
    _text("topic", "the name of one; all that the key sees if left out"),
    _text("client_name", "of the consumer"),
)
TOPICS = (
    _text("topic", "the name of one; all that the key sees if left out"),
    _text("broker", "the name of one"),
)
SKIPS = (
    _text("topic", "the name of one", required=True),
    _text("consumer_group", "its own, and those for all; those of every group if not"),
)
FOLLOWED = (
    OpenApiParameter("topic", str, required=True, many=True, description="their names"),
    SKIPS[1],
    _text("after", "<epoch>.<revision>, of several topics <epoch>.<r1>,<r2>"),
    OpenApiParameter(
        "Last-Event-ID",
        str,
        OpenApiParameter.HEADER,
        description="the id of the last event; it goes before `after`",
    ),
)
TOKEN = _text("token", "of a preview", required=True)
IDEMPOTENCY_KEY = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="for 24 h, the same request under the same key acts only once",
)


STATUS: dict[Shape | OpenApiTypes, HTTPStatus] = {
    operations.Accepted: HTTPStatus.ACCEPTED,
    skips.AddedSkip: HTTPStatus.CREATED,
    brokers.AddedBroker: HTTPStatus.CREATED,
    topics.RegisteredTopic: HTTPStatus.CREATED,
}
MEDIA_TYPES: dict[Shape | OpenApiTypes, str] = {
    OpenApiTypes.BINARY: "application/octet-stream",
    OpenApiTypes.STR: EVENT_STREAM,
}
# In what else an answer can be had, by who names it in `Accept`.
ALSO: dict[Shape | OpenApiTypes, str] = {skips.Skips: skip_lines.MEDIA_TYPE}


class Described(AutoSchema):
    """Adds the scope that the view asks for, so that it is said in one place."""

    def get_description(self, *_: str) -> str:
        method = getattr(self.view, str(self.method).lower())
        needed = cast(View, self.view).scopes[self.method]
        told = (
            f"Needs the scope `{needed}`."
            if isinstance(needed, Scope)
            else "Any sign-in or key will do."
        )
        return "\n\n".join(filter(None, [method.__doc__, told]))


def described(
    name: str,
    summary: str,
    *,
    answer: Shape | OpenApiTypes,
    request: Shape | None = None,
    parameters: Sequence[OpenApiParameter] = (),
    refusals: Sequence[HTTPStatus] = (),
) -> Callable[[Method], Method]:
    """Say of a view's method what it takes and answers."""
    expected = {*ALWAYS, *refusals, *(WITH_A_BODY if request else ())}
    responses: dict[tuple[int, str], object] = {
        (refusal.value, MEDIA_TYPE): OpenApiResponse(_problem(refusal), refusal.phrase)
        for refusal in sorted(expected)
    }
    status = STATUS.get(answer, HTTPStatus.OK)
    media_type = MEDIA_TYPES.get(answer, "application/json")
    expected_answer = OpenApiResponse(answer, status.phrase)
    responses = {(status.value, media_type): expected_answer, **responses}
    if answer in ALSO:
        as_text = OpenApiResponse(OpenApiTypes.STR, status.phrase)
        responses[status.value, ALSO[answer]] = as_text

    def decorate(method: Method) -> Method:
        vars(method)["schema"] = Described
        return extend_schema(
            operation_id=name,
            summary=summary,
            request=request,
            parameters=list(parameters),
            responses=responses,
        )(method)

    return decorate


def _problem(status: HTTPStatus) -> Shape:
    stale = status is HTTPStatus.CONFLICT
    return StaleProblem if stale else Problem


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # theirs
    target_class = "apps.api.authentication.ApiKeyAuthentication"
    name = "key"

    def get_security_definition(self, _: AutoSchema) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": f"pw_{settings.POISONWEB_ENVIRONMENT}_...",
        }


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # theirs
    target_class = "apps.api.authentication.SignedInAuthentication"
    name = "session"

    def get_security_definition(self, _: AutoSchema) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}
