"""Drop poisons, and restore them. What an operation may still send stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from apps.poison.services.locking import lock
from apps.poison.states import PoisonState, before, silent_before

_DROP = """
UPDATE poison_poison SET state = 'dropped', dropped_at = %(now)s
WHERE id = ANY(%(poisons)s) AND state = ANY(%(from)s)
  AND (state <> 'redriven' OR sent_at < %(silent_before)s)
  AND NOT EXISTS (SELECT FROM poison_hold WHERE poison_id = poison_poison.id)
RETURNING id
"""

_RESTORE = """
UPDATE poison_poison SET state = 'open', dropped_at = NULL
WHERE id = ANY(%(poisons)s) AND state = 'dropped' RETURNING id
"""


def drop(*, poisons: Sequence[int], now: datetime) -> set[int]:
    """Drop those that may be dropped; return them. Call it inside a transaction."""
    values = {
        "now": now,
        "from": before(PoisonState.DROPPED),
        "silent_before": silent_before(now),
    }
    return _transition(_DROP, poisons, values)


def restore(*, poisons: Sequence[int]) -> set[int]:
    """Open those that are dropped; return them. Call it inside a transaction."""
    return _transition(_RESTORE, poisons, {})


def _transition(
    statement: str, poisons: Sequence[int], values: dict[str, Any]
) -> set[int]:
    """Lock poisons and change their states by SQL; return those that changed."""
    lock(poisons)
    with connection.cursor() as cursor:
        cursor.execute(statement, {**values, "poisons": list(poisons)})
        return {poison for (poison,) in cursor.fetchall()}
