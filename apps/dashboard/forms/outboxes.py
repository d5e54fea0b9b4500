"""The forms of outboxes; their settings are those of `apps.outbox.outbox_fields`.

The form of an outbox keeps what was typed, so that a refused one is shown again as it
was; the address of a stored outbox is not shown, and stays where nothing is typed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Self

from django import forms
from django.core.signing import Signer
from django.http import QueryDict

from apps.brokers import sealed_addresses
from apps.core.errors import Invalid
from apps.dashboard.forms import endpoint_and_outbox_setting_fields as declared
from apps.dashboard.forms.endpoint_and_outbox_setting_fields import (
    SettingField,
    version_in,
)
from apps.dashboard.forms.fields import reason_in
from apps.dashboard.keyset_pagination import MAX_ID
from apps.outbox import table_inspection
from apps.outbox.models import Outbox
from apps.outbox.outbox_fields import SETTINGS
from apps.outbox.outbox_row_decisions import RowFilter, RowState
from apps.outbox.outbox_settings_dataclass import OutboxSettings
from apps.outbox.services import outbox_registration
from apps.team.rights import Principal
from poisonguard.contract import NAME_LIMIT
from poisonguard.outbox.sweeping.inspection import Finding

# It has buttons of its own on the outbox's page.
_OF_THE_FORM = [setting for setting in SETTINGS if setting.name != "is_paused"]


class RowsForm(forms.Form):
    """Filter the rows of an outbox; the page begins before the row `before`."""

    state = forms.ChoiceField(
        required=False, choices=[(state.value, state.value) for state in RowState]
    )
    message_id = forms.CharField(required=False, strip=False, max_length=NAME_LIMIT)
    topic = forms.CharField(required=False, strip=False, max_length=NAME_LIMIT)
    before = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)

    @property
    def as_filter(self) -> RowFilter:
        """Return the filter of outbox rows; raise Invalid for its first wrong field."""
        if not self.is_valid():
            field, texts = next(iter(self.errors.items()))
            raise Invalid(field, str(texts[0]).rstrip("."))
        state = self.cleaned_data["state"]
        return RowFilter(
            **self.cleaned_data | {"state": RowState(state) if state else None}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxForm:
    """An outbox as typed into the form; `version` is the one that it was made of.

    `inspected` is the mark of the tables whose faults the page showed.
    """

    name: str = ""
    texts: Mapping[str, str]
    version: int | None = None
    reason: str = ""
    inspected: str = ""

    @classmethod
    def empty(cls) -> Self:
        """Return the form of a new outbox, with the usual settings."""
        usual = OutboxSettings(url="", broker="")
        return cls(texts=declared.texts_of(SETTINGS, usual))

    @classmethod
    def of(cls, outbox: Outbox) -> Self:
        """Return a form with the settings of an outbox, without a sealed address."""
        settings = OutboxSettings.of(outbox)
        texts = declared.texts_of(SETTINGS, settings)
        if not settings.url.startswith(sealed_addresses.FROM_ENVIRONMENT):
            texts["url"] = ""
        return cls(name=outbox.name, texts=texts, version=outbox.version)

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Read the submitted form of an outbox's settings, still unchecked."""
        return cls(
            name=data.get("name", "").strip(),
            texts=declared.submitted_texts(SETTINGS, data),
            version=version_in(data),
            reason=reason_in(data),
            inspected=data.get("inspected", ""),
        )

    def mark(self, principal: Principal) -> str:
        """Sign the place of the tables: faults were shown of these, to this person."""
        place = json.dumps([self.texts["url"], self.texts["schema"]])
        return Signer(salt=f"tables looked at by {principal.actor}").signature(place)

    def findings(self) -> list[Finding]:
        """List what is wrong with a new outbox's tables.

        Raises Invalid for a wrong field of its form.
        """
        settings = OutboxSettings(**declared.parse_settings(_OF_THE_FORM, self.texts))
        settings.check()
        url = outbox_registration.storable_url(settings.url)
        outbox_registration.check_address(url)
        return table_inspection.findings(
            url=url, schema=settings.schema, for_manager=True
        )

    @property
    def sections(self) -> Iterator[tuple[StrEnum, list[SettingField]]]:
        """Yield each group of the outbox's settings with its form fields."""
        return declared.sections(_OF_THE_FORM, self.texts)

    def add(self, principal: Principal, *, now: datetime) -> Outbox:
        """Add an outbox with the entered values; raises Invalid for a wrong field."""
        return outbox_registration.add_outbox(
            name=self.name,
            settings=OutboxSettings(
                **declared.parse_settings(_OF_THE_FORM, self.texts)
            ),
            principal=principal,
            reason=self.reason,
            now=now,
        )

    def alter(self, outbox: Outbox, principal: Principal, *, now: datetime) -> None:
        """Change an outbox to the entered values; raises Invalid for a wrong field."""
        changes = declared.parse_settings(_OF_THE_FORM, self.texts)
        if not changes["url"] or changes["url"] == outbox.url:
            del changes["url"]
        outbox_registration.change_outbox(
            name=outbox.name,
            changes=changes,
            version=self.version,
            principal=principal,
            reason=self.reason,
            now=now,
        )
