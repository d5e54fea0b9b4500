"""Builders of registered outboxes for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from apps.brokers.models import Broker
from apps.core.actor import Actor
from apps.outbox.models import Outbox
from apps.outbox.outbox_settings_dataclass import OutboxSettings
from apps.outbox.services.outbox_registration import add_outbox, visible_outbox
from apps.team.rights import Principal, Scope

NOW = datetime(2026, 5, 18, 12, 0, tzinfo=UTC)
ADMIN = Principal(actor=Actor("user:anna"), scopes=frozenset(Scope))


def events() -> Broker:
    """Register the broker in memory."""
    broker, _ = Broker.objects.get_or_create(
        name="events", defaults={"kind": "queues", "url": "env:BROKER_NOWHERE"}
    )
    return broker


def outbox_at(url: str, name: str = "shop", **settings: Any) -> Outbox:
    """Register an outbox whose tables are in this database of the tests."""
    events()
    add_outbox(
        name=name,
        settings=OutboxSettings(
            url=f"{url}?sslmode=disable", broker="events", **settings
        ),
        principal=ADMIN,
        now=NOW,
    )
    return visible_outbox(name=name, principal=ADMIN)
