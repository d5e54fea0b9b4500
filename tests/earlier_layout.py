"""Write operations as the release before did: their items had states, in one table."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from apps.poison.models import Poison, Redrive
from apps.poison.states import RedriveOutcome
from apps.team.rights import Principal
from apps.triage.models import Operation
from apps.triage.operation_states import FINISHED, LAYOUT_BEFORE, OperationState, Verb

AN_HOUR = timedelta(hours=1)
# What had no answer yet.
NOT_SENT = {"sending", "unknown", "refused"}
ANSWERED = {"confirmed", "recurred"}

_INSERT = """
INSERT INTO triage_item (operation_id, poison_id, state, reason, held, redrive_id)
VALUES (%s, %s, %s, %s, false, %s)
"""
# As it did when an operation was confirmed.
_HOLD = "UPDATE triage_item SET held = true WHERE id = ANY(%s)"


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierItem:
    """An item of the release before; `state` may be the outcome of its redrive."""

    poison: Poison
    state: str = "waiting"
    reason: str = ""


def execute(query: str, values: Sequence[Any] | dict[str, Any] = ()) -> int:
    """Run an SQL statement; return how many rows it found or changed."""
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return int(cursor.rowcount)


def rows(query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def earlier(
    who: Principal,
    now: datetime,
    items: Iterable[EarlierItem] = (),
    *,
    verb: Verb = Verb.REDRIVE,
    state: OperationState = OperationState.RUNNING,
    **changes: object,
) -> Operation:
    """Store an operation; if it is not over, it holds what waits or is in flight."""
    is_preview = state is OperationState.PREVIEW
    members = list(items)
    values: dict[str, Any] = {
        "verb": verb.value,
        "state": state.value,
        "actor": str(who.actor),
        "source": "web",
        "topics": ["*"],
        "query": "topic:orders",
        "reason": "" if is_preview else "of then",
        "taken": True,
        "total": len(members),
        "layout": LAYOUT_BEFORE,
        "epoch": 0 if is_preview else 1,
        "created_at": now,
        "expires_at": now + AN_HOUR,
        "confirmed_at": None if is_preview else now,
        "finished_at": now if state in FINISHED else None,
        **changes,
    }
    operation = Operation.objects.create(**values)
    inserted = [_insert(operation, item, now) for item in members]
    if not is_preview and state not in FINISHED:
        execute(_HOLD, [[pk for pk, is_open in inserted if is_open]])
    return operation


def _insert(operation: Operation, item: EarlierItem, now: datetime) -> tuple[int, bool]:
    """Store an operation's item and redrive; return its id, and if it is not over."""
    redrive = None
    if item.state in {outcome.value for outcome in RedriveOutcome}:
        redrive = _redrive(item, operation.target_topic_id, now)
    state = item.state if redrive is None else "claimed"
    is_open = item.state in {"waiting", "sending", "unknown"}
    values = [operation.pk, item.poison.pk, state, item.reason, redrive]
    ((pk,),) = rows(f"{_INSERT} RETURNING id", values)
    return pk, is_open


def _redrive(item: EarlierItem, target: int | None, now: datetime) -> uuid.UUID:
    """Store the redrive of a claimed item, and what it made of its poison."""
    poison, outcome = item.poison, item.state
    states = {"sending": "redriving", "unknown": "redriving", "sent": "redriven"}
    was_sent = outcome not in NOT_SENT
    Poison.objects.filter(pk=poison.pk).update(
        redrives=poison.redrives + 1,
        state=states.get(outcome, "confirmed" if outcome == "confirmed" else "open"),
        sent_at=now if was_sent else None,
    )
    poison.refresh_from_db()
    return Redrive.objects.create(
        id=uuid.uuid4(),
        poison=poison,
        n=poison.redrives,
        topic_id=target or poison.topic_id,
        outcome=outcome,
        detail="too large" if outcome == "refused" else "",
        epoch=1,
        claimed_at=now,
        sent_at=now if was_sent else None,
        answered_at=now if outcome in ANSWERED else None,
        confirmed_at=now if outcome == "confirmed" else None,
    ).pk
