"""Describe the calls in the OpenAPI schema, beyond what the code of the views says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, TypeVar

from django.conf import settings
from drf_spectacular.extensions import (
    OpenApiAuthenticationExtension,
    OpenApiSerializerExtension,
    OpenApiSerializerFieldExtension,
)
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiRequest,
    OpenApiResponse,
    extend_schema,
)
from rest_framework.serializers import Serializer

from apps.api import query_parameters
from apps.api.error_responses import MEDIA_TYPE
from apps.api.examples import EXAMPLES
from apps.api.idempotency import HEADER
from apps.api.keyset_pagination import DEFAULT_LIMIT, MOST_LIMIT
from apps.api.permissions import RequiredScope
from apps.api.serializers import (
    brokers,
    endpoints,
    message_skips,
    outboxes,
    topics,
    triage_operations,
)
from apps.api.serializers.problem_details import Problem, StaleProblem
from apps.audit import filters as audit_filters
from apps.audit.services import Action
from apps.redelivery import delivery_filters
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.team.rights import Scope
from poisonguard.contract import NAME_LIMIT, Cause
from poisonguard.skipping import skip_list_line_format

Method = TypeVar("Method", bound=Callable[..., Any])
SchemaClass = type[Serializer[Any]]

ALWAYS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE)
WITH_A_BODY = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
EVENT_STREAM = "text/event-stream"
# The statuses of a refused Idempotency-Key, and of a refused decision.
REFUSED_KEY = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


def _text_parameter(name: str, description: str, **limits: Any) -> OpenApiParameter:
    """Describe an API parameter of text, and what limits it, for OpenAPI."""
    return OpenApiParameter(name, {"type": "string", **limits}, description=description)


PAGING = (
    _text_parameter("cursor", "the `next` of the page before"),
    OpenApiParameter(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": MOST_LIMIT},
        description=f"1 to {MOST_LIMIT}; {DEFAULT_LIMIT} if left out",
    ),
)
_AUDIT_LIMITS: dict[str, dict[str, Any]] = {
    "actor": {"maxLength": audit_filters.TEXT_LIMIT},
    "action": {"enum": sorted(Action)},
    "subject": {"maxLength": audit_filters.TEXT_LIMIT},
}
AUDIT_FILTERS = tuple(
    _text_parameter(name, takes, **_AUDIT_LIMITS.get(name, {}))
    for name, takes in audit_filters.PARAMETERS.items()
)
_DELIVERY_LIMITS: dict[str, dict[str, Any]] = {
    "endpoint": {"maxLength": NAME_LIMIT},
    "state": {"enum": list(DeliveryState)},
    "cause": {"enum": list(Cause)},
}
DELIVERY_FILTERS = tuple(
    _text_parameter(name, takes, **_DELIVERY_LIMITS.get(name, {}))
    for name, takes in delivery_filters.PARAMETERS.items()
)
_NAME = {"minLength": 1, "maxLength": NAME_LIMIT}
FOLLOWED = (
    OpenApiParameter(
        "topic",
        {
            "type": "array",
            "items": {"type": "string", **_NAME},
        },
        required=True,
        description="their names",
    ),
    _text_parameter(
        "consumer_group", "its skips and those for all; all skips if left out", **_NAME
    ),
    _text_parameter("after", "<epoch>.<revision>, of several topics <epoch>.<r1>,<r2>"),
    OpenApiParameter(
        "Last-Event-ID",
        str,
        OpenApiParameter.HEADER,
        description="the id of the last event; it takes precedence over `after`",
    ),
)
IDEMPOTENCY_KEY = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="for 24 h, the same request under the same key acts only once",
)


STATUS: dict[SchemaClass | OpenApiTypes, HTTPStatus] = {
    triage_operations.Accepted: HTTPStatus.ACCEPTED,
    message_skips.AddedSkip: HTTPStatus.CREATED,
    brokers.AddedBroker: HTTPStatus.CREATED,
    topics.RegisteredTopic: HTTPStatus.CREATED,
    endpoints.AddedEndpoint: HTTPStatus.CREATED,
    outboxes.AddedOutbox: HTTPStatus.CREATED,
}
MEDIA_TYPES: dict[SchemaClass | OpenApiTypes, str] = {
    OpenApiTypes.BINARY: "application/octet-stream",
    OpenApiTypes.STR: EVENT_STREAM,
}
# A second media type of an answer, for clients that name it in `Accept`.
ALTERNATIVES: dict[SchemaClass | OpenApiTypes, str] = {
    message_skips.Skips: skip_list_line_format.MEDIA_TYPE
}


class ScopedSchema(AutoSchema):
    """Add the scope that the view requires to the description of each call."""

    def _get_request_body(self, *direction: str) -> Any:
        method = self.method
        # drf-spectacular leaves out the body of a DELETE, which has the reason here.
        self.method = "POST" if method == "DELETE" else method
        try:
            return super()._get_request_body(*direction)  # type: ignore[no-untyped-call] # theirs
        finally:
            self.method = method

    def get_description(self, *_: str) -> str:
        """Return a view's docstring for OpenAPI, and the scope that the call needs."""
        method = getattr(self.view, str(self.method).lower())
        view: Any = self.view
        required_scope: RequiredScope = view.scopes[self.method]
        scope_note = (
            f"Needs the scope `{required_scope}`."
            if isinstance(required_scope, Scope)
            else "Any sign-in or key will do."
        )
        return "\n\n".join(filter(None, [cleandoc(method.__doc__ or ""), scope_note]))


def describe_call(
    name: str,
    summary: str,
    *,
    answer: SchemaClass | OpenApiTypes,
    request: SchemaClass | None = None,
    parameters: Sequence[OpenApiParameter | SchemaClass] = (),
    refusals: Sequence[HTTPStatus] = (),
) -> Callable[[Method], Method]:
    """Return a decorator that describes for OpenAPI what a view takes and answers.

    A view refuses query parameters that are not among `parameters`, if it has some.
    """
    names = frozenset(query_parameters.names_of(parameters))
    expected = {
        *ALWAYS,
        *refusals,
        *(WITH_A_BODY if request else ()),
        *([HTTPStatus.UNPROCESSABLE_ENTITY] if names else ()),
    }
    responses: dict[tuple[int, str], object] = {
        (refusal.value, MEDIA_TYPE): OpenApiResponse(_problem(refusal), refusal.phrase)
        for refusal in sorted(expected)
    }
    status = STATUS.get(answer, HTTPStatus.OK)
    media_type = MEDIA_TYPES.get(answer, "application/json")
    expected_answer = OpenApiResponse(answer, status.phrase, _examples(answer))
    responses = {(status.value, media_type): expected_answer, **responses}
    if answer in ALTERNATIVES:
        as_text = OpenApiResponse(OpenApiTypes.STR, status.phrase)
        responses[status.value, ALTERNATIVES[answer]] = as_text

    def decorate(method: Method) -> Method:
        vars(method).update(schema=ScopedSchema, query_parameters=names)
        return extend_schema(
            operation_id=name,
            summary=summary,
            request=request and OpenApiRequest(request, examples=_examples(request)),
            parameters=list(parameters),
            responses=responses,
        )(method)

    return decorate


class StrictObject(OpenApiSerializerExtension):  # type: ignore[no-untyped-call] # theirs
    """Describe what every request refuses: unknown members, and required empty text."""

    target_class = "apps.api.serializers.base.RequestSchema"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        shape: dict[str, Any] = auto_schema._map_serializer(  # noqa: SLF001 - as their examples do
            self.target, direction, bypass_extensions=True
        )
        for name, field in self.target.fields.items():
            is_text = "string" in shape["properties"][name].get("type", ())
            if is_text and not getattr(field, "allow_blank", True):
                shape["properties"][name].setdefault("minLength", 1)
        return {**shape, "additionalProperties": False}


class NamedMembers(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call] # theirs
    """Describe the names of the members, beside their values."""

    target_class = "apps.api.serializers.base.ByName"
    match_subclasses = True

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        field = self.target
        shape: dict[str, Any] = auto_schema._map_serializer_field(  # noqa: SLF001 - as their examples do
            field, direction, bypass_extensions=True
        )
        names = auto_schema._map_serializer_field(field.names, direction)  # noqa: SLF001
        auto_schema._insert_field_validators(field.names, names)  # noqa: SLF001
        least = {} if field.allow_empty else {"minProperties": 1}
        # Whether it may be null is added after this.
        return {**shape, "type": "object", "propertyNames": names, **least}


def _examples(body: SchemaClass | OpenApiTypes) -> list[OpenApiExample]:
    kind = body.__name__ if isinstance(body, type) else body.name
    named = EXAMPLES.get(kind, {})
    return [OpenApiExample(name, value) for name, value in named.items()]


def _problem(status: HTTPStatus) -> SchemaClass:
    """Return the OpenAPI schema of an error's body."""
    stale = status is HTTPStatus.CONFLICT
    return StaleProblem if stale else Problem


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # theirs
    target_class = "apps.api.authentication.ApiKeyAuthentication"
    name = "key"

    def get_security_definition(self, _: AutoSchema) -> dict[str, Any]:
        """Describe the API key for OpenAPI as a bearer token."""
        return {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": f"pw_{settings.POISONWEB_ENVIRONMENT}_...",
        }


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # theirs
    target_class = "apps.api.authentication.SignedInAuthentication"
    name = "session"

    def get_security_definition(self, _: AutoSchema) -> dict[str, Any]:
        """Describe the session's cookie for OpenAPI."""
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}
