"""The settings of an outbox as a value, checked in one place for pages and API."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from apps.core.declared_settings import check_value
from apps.core.errors import Invalid
from apps.outbox.models import Outbox
from apps.outbox.outbox_fields import SETTINGS


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxSettings:
    """What a person sets of an outbox; the names are those of `Outbox`.

    `url` is sealed or env:NAME once it is stored, and `broker` is a name.
    """

    url: str
    broker: str
    schema: str = ""
    is_paused: bool = False
    window: int = 500
    most_lag: int | None = None
    most_depth: int | None = None
    sent_rows_days: int = 7
    sent_ids_days: int = 30

    @classmethod
    def of(cls, outbox: Outbox) -> Self:
        """Return the `OutboxSettings` of a stored outbox."""
        values = {each.name: getattr(outbox, each.name) for each in fields(cls)}
        return cls(**values | {"broker": outbox.broker.name})

    def check(self) -> None:
        """Raise Invalid for an outbox's first unusable setting, with the remedy."""
        for setting in SETTINGS:
            if setting.name != "url":  # its limits are those before it is sealed
                check_value(setting, getattr(self, setting.name))
        if self.sent_ids_days < self.sent_rows_days:
            raise Invalid(
                "sent_ids_days",
                f"it is {self.sent_ids_days} days, and rows stay for"
                f" {self.sent_rows_days}: make it as long at least",
            )
