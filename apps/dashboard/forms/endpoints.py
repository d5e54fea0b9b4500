"""The form of an endpoint; its fields are those of `apps.redelivery.endpoint_fields`.

It keeps what was typed, so that a refused form is shown again as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from django.http import QueryDict

from apps.dashboard.forms import endpoint_and_outbox_setting_fields as declared
from apps.dashboard.forms.endpoint_and_outbox_setting_fields import (
    SettingField,
    version_in,
)
from apps.dashboard.forms.fields import reason_in
from apps.redelivery.endpoint_fields import SETTINGS
from apps.redelivery.endpoint_settings_dataclass import PRESETS, EndpointSettings
from apps.redelivery.models import Endpoint
from apps.redelivery.services import endpoints
from apps.team.rights import Principal

# It has buttons of its own on the endpoint's page.
_OF_THE_FORM = [setting for setting in SETTINGS if setting.name != "is_enabled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointForm:
    """An endpoint as typed into the form; `version` is the one that it was made of."""

    name: str = ""
    texts: Mapping[str, str]
    version: int | None = None
    reason: str = ""

    @classmethod
    def beginning_with(cls, preset: str) -> Self:
        """Return an endpoint form with the values of a preset, or the usual ones."""
        values = EndpointSettings(target="", **PRESETS.get(preset, {}))
        return cls(texts=declared.texts_of(SETTINGS, values))

    @classmethod
    def of(cls, endpoint: Endpoint) -> Self:
        """Return a form with the current settings of an endpoint."""
        return cls(
            name=endpoint.name,
            texts=declared.texts_of(SETTINGS, EndpointSettings.of(endpoint)),
            version=endpoint.version,
        )

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Read the submitted form of an endpoint's settings, still unchecked."""
        return cls(
            name=data.get("name", "").strip(),
            texts=declared.submitted_texts(SETTINGS, data),
            version=version_in(data),
            reason=reason_in(data),
        )

    @property
    def sections(self) -> Iterator[tuple[StrEnum, list[SettingField]]]:
        """Yield each group of the endpoint's settings with its fields."""
        return declared.sections(_OF_THE_FORM, self.texts)

    def add(self, principal: Principal, *, now: datetime) -> Endpoint:
        """Add an endpoint with the entered values; raises Invalid for a wrong field."""
        return endpoints.create_endpoint(
            name=self.name,
            settings=EndpointSettings(**self._values()),
            principal=principal,
            reason=self.reason,
            now=now,
        )

    def alter(self, endpoint: Endpoint, principal: Principal, *, now: datetime) -> None:
        """Change an endpoint to the entered values; raises Invalid if one is wrong."""
        endpoints.change_endpoint(
            name=endpoint.name,
            changes=self._values(),
            version=self.version,
            principal=principal,
            reason=self.reason,
            now=now,
        )

    def _values(self) -> dict[str, Any]:
        """Parse the endpoint's entered settings; raises Invalid for the first wrong."""
        return declared.parse_settings(_OF_THE_FORM, self.texts)
