"""Confirm redriven messages: their consumers handled them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.poison import redrive_signatures as token
from apps.poison.models import Redrive
from apps.poison.services import operation_item_window_counts, sends
from apps.poison.services.locking import lock
from apps.poison.services.operation_item_window_counts import Change
from apps.poison.services.sends import UnrecordedSend
from apps.poison.states import (
    IN_FLIGHT,
    PoisonState,
    RedriveOutcome,
    before,
    outcomes_before,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationResult:
    """The result of a confirmation: confirmed, duplicate, or rejected with a reason."""

    status: str
    poison: int | None = None
    detail: str | None = None


@transaction.atomic
def confirm(
    *, tokens: Sequence[tuple[str, str]], now: datetime
) -> list[ConfirmationResult]:
    """Confirm redriven messages: `tokens` holds (redrive header, topic) of each.

    Reject a token that we did not sign for that topic. Idempotent.
    """
    ids = [token.redrive_of(text) for text, _ in tokens]
    early = _unrecorded(list(zip(ids, tokens, strict=True)))
    existing = Redrive.objects.filter(pk__in=[i for i in ids if i])
    lock(
        {
            *existing.values_list("poison_id", flat=True),
            *(send.poison for send in early),
        }
    )
    changes = sends.record_early(early, now=now)
    redrives = {
        redrive.pk: redrive
        for redrive in Redrive.objects.filter(
            pk__in=[i for i in ids if i]
        ).select_related("poison", "topic")
    }
    genuine = {
        redrive
        for redrive, (text, topic) in zip(ids, tokens, strict=True)
        if redrive is not None
        and redrive in redrives
        and _is_genuine(redrives[redrive], text, topic)
    }
    changed = _confirm(list(genuine), changes, now=now)
    return [_result_of_token(redrives, genuine, changed, redrive) for redrive in ids]


def _unrecorded(
    tokens: Sequence[tuple[uuid.UUID | None, tuple[str, str]]],
) -> list[UnrecordedSend]:
    """Find redrives that consumers confirm before operations recorded their sends."""
    missing = sends.unrecorded_sends(redrive for redrive, _ in tokens if redrive)
    genuine = {
        redrive: missing[redrive]
        for redrive, (text, topic) in tokens
        if redrive in missing
        and missing[redrive].topic == topic
        and token.verified_redrive_id(text, topic=topic, digest=missing[redrive].digest)
    }
    return list(genuine.values())


def _is_genuine(redrive: Redrive, text: str, topic: str) -> bool:
    """Tell whether we signed the token for this redrive, topic and body."""
    return redrive.topic.name == topic and redrive.pk == token.verified_redrive_id(
        text, topic=topic, digest=redrive.poison.digest
    )


def _result_of_token(
    redrives: dict[uuid.UUID, Redrive],
    genuine: Collection[uuid.UUID],
    changed: set[uuid.UUID],
    redrive: uuid.UUID | None,
) -> ConfirmationResult:
    """Return whether a redrive's token is `confirmed`, a `duplicate` or `rejected`.

    Only its first use is `confirmed`.
    """
    if redrive is None or redrive not in genuine:
        return ConfirmationResult(
            status="rejected",
            detail="this is no redrive of ours to this topic; send the header "
            "x-poisonweb-redrive as it came",
        )
    poison = redrives[redrive].poison_id
    if redrive in changed:
        # A further copy within this request is a duplicate.
        changed.discard(redrive)
        return ConfirmationResult(status="confirmed", poison=poison)
    outcome = redrives[redrive].outcome
    detail = None
    if outcome not in {
        *outcomes_before(RedriveOutcome.CONFIRMED),
        RedriveOutcome.CONFIRMED,
    }:
        detail = f"nothing changed: this redrive is already {outcome}"
    return ConfirmationResult(status="duplicate", poison=poison, detail=detail)


# A poison is open while no broker has answered its last send; any other open one was
# opened later, and stays open.
# OFFSET 0 makes Postgres look up each poison by its id. With statistics from before the
# first redrive, the planner would compare all sent poisons with each confirmed one.
_CONFIRM = """
WITH confirmed AS (
    UPDATE poison_redrive SET outcome = 'confirmed', answered_at = %(now)s,
           confirmed_at = %(now)s, sent_at = coalesce(sent_at, %(now)s)
    WHERE id = ANY(%(ids)s) AND outcome = ANY(%(from)s)
    RETURNING id, poison_id, n, sent_at, operation, item
), settled AS (
    UPDATE poison_poison SET state = 'confirmed', sent_at = confirmed.sent_at
    FROM confirmed, LATERAL (
        SELECT id, redrives, state FROM poison_poison
        WHERE id = confirmed.poison_id OFFSET 0
    ) known
    WHERE poison_poison.id = known.id AND known.redrives = confirmed.n
      AND known.state = ANY(%(settles)s)
      AND (known.state <> 'open' OR (SELECT outcome FROM poison_redrive before
           WHERE before.id = confirmed.id) = ANY(%(in_flight)s))
)
SELECT confirmed.id, confirmed.operation, confirmed.item, known.outcome
FROM confirmed JOIN poison_redrive known USING (id)
"""


def _confirm(
    ids: list[uuid.UUID], changes: Sequence[Change], *, now: datetime
) -> set[uuid.UUID]:
    """Set redrives to confirmed, if they may be; return those that changed.

    Counts these and the other changes of the transaction together, in the windows of
    their operations.
    """
    with connection.cursor() as cursor:
        values: dict[str, Any] = {
            "ids": ids,
            "now": now,
            "from": outcomes_before(RedriveOutcome.CONFIRMED),
            "settles": before(PoisonState.CONFIRMED),
            "in_flight": list(IN_FLIGHT),
        }
        cursor.execute(_CONFIRM, values)
        rows = cursor.fetchall()
    confirmed = [
        # The statement still sees the outcome of before.
        Change(operation, item, before_it, RedriveOutcome.CONFIRMED.value)
        for _, operation, item, before_it in rows
    ]
    operation_item_window_counts.count([*changes, *confirmed])
    return {redrive for redrive, *_ in rows}
