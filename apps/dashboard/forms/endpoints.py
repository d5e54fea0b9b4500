"""The form of an endpoint; its fields are those of `apps.redelivery.endpoint_fields`.

It keeps what was typed, so that a refused form is shown again as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Self

from django import forms
from django.http import QueryDict

from apps.core.errors import Invalid
from apps.dashboard.forms.fields import reason_in
from apps.dashboard.selectors.endpoints import EndpointFilter
from apps.redelivery.endpoint_fields import SETTINGS, Group, Kind, Setting
from apps.redelivery.endpoint_settings import PRESETS, EndpointSettings
from apps.redelivery.models import Endpoint
from apps.redelivery.services import endpoints
from apps.team.rights import Principal

# It has buttons of its own on the endpoint's page.
_NOT_IN_THE_FORM = "is_enabled"
_LONGEST_NUMBER = 20


class EndpointsForm(forms.Form):
    """Filter endpoints by part of a name; the page begins after the name `after`."""

    name = forms.CharField(required=False)
    after = forms.CharField(required=False, strip=False)

    @property
    def as_filter(self) -> EndpointFilter:
        """Return the filter; an invalid form filters nothing."""
        if not self.is_valid():
            return EndpointFilter()
        return EndpointFilter(**self.cleaned_data)


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingField:
    """A setting with what is typed for it."""

    setting: Setting
    text: str

    @property
    def is_ticked(self) -> bool:
        return bool(self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointForm:
    """An endpoint as typed into the form; `version` is the one that it was made of."""

    name: str = ""
    texts: Mapping[str, str]
    version: int | None = None
    reason: str = ""

    @classmethod
    def beginning_with(cls, preset: str) -> Self:
        """Return a form with the values of a preset, or the usual ones."""
        values = EndpointSettings(target="", **PRESETS.get(preset, {}))
        return cls(texts=_texts(values))

    @classmethod
    def of(cls, endpoint: Endpoint) -> Self:
        """Return a form with the settings of an endpoint."""
        return cls(
            name=endpoint.name,
            texts=_texts(EndpointSettings.of(endpoint)),
            version=endpoint.version,
        )

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Read the submitted values; nothing is checked yet."""
        version = data.get("version", "")
        return cls(
            name=data.get("name", "").strip(),
            texts={setting.name: data.get(setting.name, "") for setting in SETTINGS},
            version=int(version) if _is_number(version) else None,
            reason=reason_in(data),
        )

    @property
    def sections(self) -> Iterator[tuple[Group, list[SettingField]]]:
        """Yield each group with its fields."""
        settings_of_form = (each for each in SETTINGS if each.name != _NOT_IN_THE_FORM)
        for group, settings in groupby(
            settings_of_form, key=lambda setting: setting.group
        ):
            yield (
                group,
                [
                    SettingField(setting=setting, text=self.texts[setting.name])
                    for setting in settings
                ],
            )

    def add(self, principal: Principal, *, now: datetime) -> Endpoint:
        """Add an endpoint with these values; raises Invalid for a wrong field."""
        return endpoints.create_endpoint(
            name=self.name,
            settings=EndpointSettings(**self._values()),
            principal=principal,
            reason=self.reason,
            now=now,
        )

    def alter(self, endpoint: Endpoint, principal: Principal, *, now: datetime) -> None:
        """Change an endpoint to these values; raises Invalid for a wrong field."""
        endpoints.change_endpoint(
            name=endpoint.name,
            changes=self._values(),
            version=self.version,
            principal=principal,
            reason=self.reason,
            now=now,
        )

    def _values(self) -> dict[str, Any]:
        """Parse what was typed; raises Invalid for the first that is no such value."""
        return {
            setting.name: _parsed(setting, self.texts[setting.name])
            for setting in SETTINGS
            if setting.name != _NOT_IN_THE_FORM
        }


def _texts(settings: EndpointSettings) -> dict[str, str]:
    """Write settings as a form shows them."""
    return {
        setting.name: _text(setting, getattr(settings, setting.name))
        for setting in SETTINGS
    }


def _text(setting: Setting, value: Any) -> str:
    match setting.kind:
        case Kind.LINES:
            return "\n".join(value)
        case Kind.FLAG:
            return "1" if value else ""
        case Kind.NUMBER:
            return "" if value is None else f"{value:.15g}"
        case _:
            return "" if value is None else str(value)


def _parsed(setting: Setting, text: str) -> Any:
    """Parse the text of a field."""
    match setting.kind:
        case Kind.LINES:
            return tuple(filter(None, map(str.strip, text.splitlines())))
        case Kind.FLAG:
            return bool(text)
        case Kind.WHOLE:
            return _number(setting, text, int, "give a whole number")
        case Kind.NUMBER:
            return _number(setting, text, float, "give a number")
        case _:
            return text.strip()


def _number(
    setting: Setting, text: str, parse: type[int] | type[float], remedy: str
) -> float | None:
    """Parse a number; None without one, which only some settings allow."""
    text = text.strip()
    if not text:
        return None
    try:
        if len(text) <= _LONGEST_NUMBER and text.isascii() and "_" not in text:
            return parse(text)
    except ValueError:
        raise Invalid(setting.name, remedy) from None
    raise Invalid(setting.name, remedy)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _LONGEST_NUMBER
