"""Note what the sweeper of an outbox does, and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from apps.core.text_cleaning import storable
from apps.outbox.models import SWEEPER_LIVES, Outbox, OutboxActivity
from apps.outbox.sweeper_and_row_states import SweeperState

DETAIL_LIMIT, STACK_LIMIT = 1_000, 20_000
# Of one writer within ten minutes: people are told whose rows they are.
FLOOD_ROWS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class SweeperNote:
    """What a sweeper did since its last note; `slowed` is topics with reasons.

    `counted_at` is the time of its counts of rows; None where it has none, so that the
    last ones stay, with their time.
    """

    state: SweeperState
    detail: str = ""
    counted_at: datetime | None = None
    waiting: int = 0
    waiting_bytes: int = 0
    oldest_at: datetime | None = None
    quarantined: int = 0
    newly_sent: int = 0
    newly_duplicate: int = 0
    sent_per_second: float = 0.0
    slowed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewErrors:
    """Errors of one kind at one step, as many as are new since the last note."""

    step: str
    kind: str
    count: int
    first_at: datetime
    last_at: datetime
    message: str
    first_stack: str


_ADD_ERROR = """
INSERT INTO outbox_error AS error
    (outbox_id, step, kind, count, first_at, last_at, message, first_stack)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (outbox_id, step, kind) DO UPDATE
SET count = error.count + EXCLUDED.count, last_at = EXCLUDED.last_at,
    message = EXCLUDED.message
"""


@transaction.atomic
def note(
    *, outbox_id: int, note: SweeperNote, errors: Sequence[NewErrors], now: datetime
) -> None:
    """Store a sweeper's state and errors, unless its outbox was removed."""
    details = [note.detail, _flood_of(outbox_id)]
    counts: dict[str, Any] = {}
    if note.counted_at is not None:
        counts = {
            "counted_at": note.counted_at,
            "waiting": note.waiting,
            "waiting_bytes": note.waiting_bytes,
            "oldest_at": note.oldest_at,
            "quarantined": note.quarantined,
        }
    if note.newly_sent or note.newly_duplicate:
        OutboxActivity.objects.filter(outbox=outbox_id).update(
            sent_count=F("sent_count") + note.newly_sent,
            duplicate_count=F("duplicate_count") + note.newly_duplicate,
        )
    _rows_for(outbox_id, note.state, now).update(
        state=note.state.value,
        detail=storable(". ".join(filter(None, details)))[:DETAIL_LIMIT],
        noted_at=now,
        sent_per_second=note.sent_per_second,
        slowed={storable(topic): storable(why) for topic, why in note.slowed.items()},
        **counts,
    )
    add_errors(outbox_id=outbox_id, errors=errors)


def _rows_for(
    outbox_id: int, state: SweeperState, now: datetime
) -> QuerySet[OutboxActivity]:
    """Select the activity of an outbox that its sweeper may overwrite.

    A waiting sweeper overwrites no working one's.
    """
    rows = OutboxActivity.objects.filter(outbox=outbox_id)
    if state is not SweeperState.WAITING:
        return rows
    return rows.exclude(
        ~Q(state__in=[SweeperState.WAITING.value, SweeperState.PAUSED.value]),
        noted_at__gte=now - SWEEPER_LIVES,
    )


def _flood_of(outbox_id: int) -> str:
    """Describe an outbox's flood of quarantined rows: how many, and whose.

    It is "" where they are few.
    """
    flooded = OutboxActivity.objects.filter(
        outbox=outbox_id, flood_rows__gte=FLOOD_ROWS
    )
    row = flooded.values_list("flood_rows", "flood_writer").first()
    if row is None:
        return ""
    count, writer = row
    return f"{count:,} rows of one writer were quarantined within ten minutes: {writer}"


@transaction.atomic
def add_errors(*, outbox_id: int, errors: Sequence[NewErrors]) -> None:
    """Add a sweeper's errors to those stored for its outbox, unless removed."""
    if not errors or not Outbox.objects.filter(pk=outbox_id).exists():
        return
    with connection.cursor() as cursor:
        cursor.executemany(
            _ADD_ERROR,
            [
                (
                    outbox_id,
                    each.step,
                    storable(each.kind)[:200],
                    each.count,
                    each.first_at,
                    each.last_at,
                    storable(each.message)[:DETAIL_LIMIT],
                    storable(each.first_stack)[:STACK_LIMIT],
                )
                for each in sorted(errors, key=lambda error: (error.step, error.kind))
            ],
        )
