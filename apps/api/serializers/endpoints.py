"""Endpoints; each setting is derived from `apps.redelivery.endpoint_fields`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rest_framework import serializers

from apps.api.serializers.base import (
    OPTIONAL,
    AnyField,
    Flag,
    List,
    Moment,
    Name,
    Number,
    PlainText,
    Real,
    ReasonText,
    RequestSchema,
    Schema,
    Text,
    choice,
)
from apps.redelivery.endpoint_fields import MOST_PATHS, SETTINGS, Kind, Setting
from apps.redelivery.endpoint_settings import PRESETS, EndpointSettings
from apps.redelivery.models.endpoints import ENDPOINT_NAME_LIMIT

PresetName = choice("EndpointPreset", PRESETS)
BreakerStateName = choice("BreakerState", ("none", "closed", "open"))
LARGEST_VERSION = 2**31 - 1


class Paths(serializers.ListField):
    """Patterns of paths, of which none allow every path."""

    default_error_messages: ClassVar = {
        **dict.fromkeys(
            ("not_a_list", "null", "required"), "send a list of patterns of paths"
        ),
        "max_length": f"send at most {MOST_PATHS} patterns",
    }


def _text(setting: Setting, **options: Any) -> AnyField:
    limits = {"max_length": int(setting.most), "allow_blank": setting.is_optional}
    return PlainText(**limits, **options)


def _whole(setting: Setting, **options: Any) -> AnyField:
    return Number(
        min_value=int(setting.least),
        max_value=int(setting.most),
        allow_null=setting.is_optional,
        **options,
    )


def _real(setting: Setting, **options: Any) -> AnyField:
    return Real(
        least=setting.least,
        most=setting.most,
        allow_null=setting.is_optional,
        **options,
    )


def _paths(setting: Setting, **options: Any) -> AnyField:
    path = PlainText(max_length=int(setting.most), allow_blank=False)
    return Paths(child=path, max_length=MOST_PATHS, **options)


def _flag(_: Setting, **options: Any) -> AnyField:
    return Flag(**options)


def _word(setting: Setting, **options: Any) -> AnyField:
    return WORDS[setting.name](**options)


def _component(setting: Setting) -> str:
    """Name the values of a setting in the schema: EndpointAtEnd."""
    return f"Endpoint{setting.name.title().replace('_', '')}"


WORDS = {
    setting.name: choice(_component(setting), setting.words)
    for setting in SETTINGS
    if setting.kind is Kind.WORD
}
_FIELDS: Mapping[Kind, Callable[..., AnyField]] = {
    Kind.TEXT: _text,
    Kind.LINES: _paths,
    Kind.FLAG: _flag,
    Kind.WHOLE: _whole,
    Kind.NUMBER: _real,
    Kind.WORD: _word,
}


def setting_fields(**options: Any) -> dict[str, AnyField]:
    """Make the field of each setting, with its help."""
    return {
        setting.name: _FIELDS[setting.kind](
            setting, help_text=_help(setting), **options
        )
        for setting in SETTINGS
    }


def _help(setting: Setting) -> str:
    unit = f"{setting.unit}: " if setting.unit else ""
    words = "; ".join(f"{word}: {means}" for word, means in setting.words.items())
    return unit + setting.help + (f" ({words})" if words else "")


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
    """Give the settings among the members, as `EndpointSettings` has them."""
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
    next_probe = Moment(source="activity.open_until", allow_null=True)


class EndpointBacklog(Schema):
    """Unfinished deliveries; numbers above 10,000 are given as 10,001."""

    waiting = Number()
    trying = Number()
    forwarding = Number()
    oldest = Moment(
        allow_null=True, help_text="when the first of those came that are counted"
    )
    next_due = Moment(allow_null=True, help_text="when the next one is tried")


class EndpointCalls(Schema):
    """The calls of the last 24 hours."""

    succeeded_at_first = Number()
    succeeded_later = Number()
    failed = Number(help_text="attempts, of which several may be of one delivery")
    given_up = Number(help_text="deliveries that were not tried again")
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
        settings = setting_fields()
        for name, field in settings.items():
            field.source = f"settings.{name}"
        return {**super().get_fields(), **settings}


class AddedEndpoint(Endpoint): ...


class Endpoints(List):
    results = Endpoint(many=True)
