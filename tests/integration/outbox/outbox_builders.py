"""Builders of registered outboxes, their rows and their sweepers' notes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from apps.brokers.models import Broker
from apps.core import clock
from apps.core.actor import Actor
from apps.outbox.models import Outbox
from apps.outbox.outbox_settings_dataclass import OutboxSettings
from apps.outbox.services import sweeper_activity
from apps.outbox.services.outbox_registration import add_outbox, visible_outbox
from apps.outbox.services.sweeper_activity import NewErrors, SweeperNote
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.team.rights import Principal, Scope
from poisonguard.contract import Cause
from poisonguard.outbox.sweeping.row_quarantine_and_report import QuarantinedRow, Writer

AWAY_URL = "postgresql://sweeper:sesame@127.0.0.1:1/shop"
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


def note(outbox: Outbox, *errors: NewErrors, **note: Any) -> None:
    """Store what the sweeper of an outbox noted just now."""
    values: dict[str, Any] = {"state": SweeperState.SWEEPING}
    values |= {"counted_at": clock.now()} | note
    sweeper_activity.note(
        outbox_id=outbox.pk, note=SweeperNote(**values), errors=errors, now=clock.now()
    )


def new_errors(message: str = "refused", stack: str = "Traceback") -> NewErrors:
    """Build the errors of one step of a sweeper, as it notes them."""
    now = clock.now()
    return NewErrors(
        step="publish",
        kind="Away",
        count=1_234,
        first_at=now,
        last_at=now,
        message=message,
        first_stack=stack,
    )


def quarantined_row(row_id: int, now: datetime, **changes: Any) -> QuarantinedRow:
    """Build a row that was quarantined, as its sweeper reports it."""
    fields: dict[str, Any] = {
        "producer": "shop",
        "message_id": f"m-{row_id}",
        "topic": "orders",
        "headers": (),
        "body": b"body",
        "body_size": 4,
        "body_digest": None,
        "attempts": 1,
        "cause": Cause.MANUAL,
        "reason": "two messages under one id",
        "writer": Writer("bob", "nightly.sh", "10.1.2.3", "71", "12:00"),
    }
    return QuarantinedRow(row_id=row_id, quarantined_at=now, **fields | changes)
