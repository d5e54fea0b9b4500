"""Endpoints; each setting is derived from `apps.redelivery.endpoint_fields`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from apps.api.serializers.base import (
    OPTIONAL,
    AnyField,
    List,
    Moment,
    Name,
    Number,
    ReasonText,
    RequestSchema,
    Schema,
    Text,
    choice,
)
from apps.api.serializers.declared_settings import SettingFields, read_from_source
from apps.redelivery.endpoint_fields import MOST_PATHS, SETTINGS
from apps.redelivery.endpoint_settings_dataclass import PRESETS, EndpointSettings
from apps.redelivery.models.endpoints import ENDPOINT_NAME_LIMIT

PresetName = choice("EndpointPreset", PRESETS)
BreakerStateName = choice("BreakerState", ("none", "closed", "open"))
LARGEST_VERSION = 2**31 - 1


setting_fields = SettingFields("Endpoint", SETTINGS, most_lines=MOST_PATHS)


class NewEndpoint(RequestSchema[dict[str, Any]]):
    name = Name(
        max_length=ENDPOINT_NAME_LIMIT,
        help_text="part of its address, /gateway/NAME, and of its topic, gateway/NAME:"
        " small letters, digits, dots, hyphens and underscores",
    )
    preset = PresetName(**OPTIONAL, help_text="where settings begin that are left out")
    reason = ReasonText(help_text="recorded in the audit trail")

    def get_fields(self) -> dict[str, AnyField]:
        settings = setting_fields(required=False)
        settings["target"].required = True
        return {**super().get_fields(), **settings}

    def value_of(self, members: dict[str, Any]) -> dict[str, Any]:
        name, reason = members.pop("name"), members.pop("reason")
        preset = PRESETS.get(members.pop("preset") or "", {})
        settings = EndpointSettings(**{**preset, **_settings(members)})
        return {"name": name, "reason": reason, "settings": settings}


class EndpointChange(RequestSchema[dict[str, Any]]):
    version = Number(
        **OPTIONAL,
        min_value=1,
        max_value=LARGEST_VERSION,
        help_text="as it was read: refused where it was changed after that",
    )
    reason = ReasonText(help_text="recorded in the audit trail")

    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), **setting_fields(required=False)}

    def value_of(self, members: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": members.pop("version"),
            "reason": members.pop("reason"),
            "changes": _settings(members),
        }


def _settings(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the endpoint's settings in a request, with its paths as a tuple."""
    settings = dict(members)
    if "paths" in settings:
        settings["paths"] = tuple(settings["paths"])
    return settings


class EndpointRemoval(RequestSchema[dict[str, str]]):
    reason = ReasonText(help_text="recorded in the audit trail")


class CircuitBreaker(Schema):
    state = BreakerStateName(
        source="breaker_state", help_text="none: the endpoint has no breaker"
    )
    failures_in_a_row = Number(source="activity.failures_in_a_row")
    opened_at = Moment(source="activity.opened_at", allow_null=True)
    next_probe = Moment(
        allow_null=True,
        help_text="when a delivery is the next probe; where none waits, when a request"
        " may be it. null: it is not open, or the next request is the probe",
    )


class EndpointBacklog(Schema):
    """Unfinished deliveries; numbers above 10,000 are given as 10,001."""

    waiting = Number()
    trying = Number()
    forwarding = Number()
    oldest = Moment(
        allow_null=True, help_text="when the first of those came that are counted"
    )
    next_due = Moment(
        allow_null=True,
        help_text="when the next one is tried, not before a probe of an open breaker",
    )


class EndpointCalls(Schema):
    """The calls of the last 24 hours."""

    succeeded_at_first = Number()
    succeeded_later = Number()
    failed = Number(help_text="attempts, of which several may be of one delivery")
    given_up = Number(
        help_text="deliveries that ended without a success: in triage, dropped or"
        " forwarded"
    )
    success_share = serializers.FloatField(
        allow_null=True, help_text="of all calls; null: there was none"
    )


class Endpoint(Schema):
    id = Number(source="endpoint.pk")
    name = Text(source="endpoint.name")
    topic = Text(
        source="endpoint.topic.name", help_text="where its given up deliveries are"
    )
    fed_by = serializers.ListField(
        child=Text(), help_text="names of topics whose messages may be requests for it"
    )
    version = Number(source="endpoint.version", help_text="counts its changes")
    created_at = Moment(source="endpoint.created_at")
    created_by = Text(source="endpoint.created_by")
    breaker = CircuitBreaker(source="*")
    backlog = EndpointBacklog(
        allow_null=True, help_text="null: counting it takes too long just now"
    )
    calls = EndpointCalls(
        allow_null=True, help_text="null: counting them takes too long just now"
    )

    def get_fields(self) -> dict[str, AnyField]:
        settings = read_from_source(setting_fields(), "settings")
        return {**super().get_fields(), **settings}


class AddedEndpoint(Endpoint): ...


class Endpoints(List):
    results = Endpoint(many=True)
