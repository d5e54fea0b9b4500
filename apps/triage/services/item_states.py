"""Changes the states of an operation's items; the caller holds its fence."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from django.db import connection

from apps.core.arrays import array
from apps.poison.states import IN_FLIGHT
from apps.triage.models import Item
from apps.triage.states import ItemState


def settle(items: Sequence[int], state: ItemState) -> None:
    """Set the final state of these items, which no longer hold their messages."""
    Item.objects.filter(pk__in=items).update(state=state.value, held=False)


def skip(items: Sequence[int]) -> None:
    """Skip the items whose poison has changed its state meanwhile."""
    if not items:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE triage_item SET state = 'skipped', held = false,"
            " reason = 'meanwhile it became ' || poison_poison.state"
            " FROM poison_poison WHERE poison_poison.id = triage_item.poison_id"
            " AND triage_item.id = ANY(%s)",
            [list(items)],
        )


def attach(redrives: dict[int, uuid.UUID]) -> None:
    """Set items to claimed, each with its redrive: {item id: redrive id}."""
    with connection.cursor() as cursor:
        # The bounds keep Postgres from reading the whole table for a few items.
        cursor.execute(
            "UPDATE triage_item SET state = 'claimed', redrive_id = claim.redrive"
            " FROM unnest(%s::int8[], %s::uuid[]) AS claim(item, redrive)"
            " WHERE triage_item.id = claim.item AND triage_item.id BETWEEN %s AND %s",
            [
                *(array(redrives), array(redrives.values())),
                *(min(redrives), max(redrives)),
            ],
        )


def detach(redrives: Iterable[uuid.UUID]) -> None:
    """Let the items of withdrawn redrives wait again; they stay held."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE triage_item SET state = 'waiting', redrive_id = NULL"
            " WHERE redrive_id = ANY(%s::uuid[]) AND state = 'claimed'",
            [array(redrives)],
        )


def release(redrives: Iterable[uuid.UUID]) -> None:
    """Release held messages whose redrive is no longer in flight."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE triage_item SET held = false"
            " WHERE redrive_id = ANY(%s::uuid[]) AND held",
            [array(redrives)],
        )


def release_answered(operation_id: int) -> None:
    """Release messages that a consumer has answered although the broker has not."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE triage_item SET held = false FROM poison_redrive"
            " WHERE poison_redrive.id = triage_item.redrive_id"
            " AND triage_item.operation_id = %s AND triage_item.held"
            " AND poison_redrive.outcome <> ALL(%s)",
            [operation_id, list(IN_FLIGHT)],
        )
