"""Drop poisons, restore them, or give one back to where it came from.

What an operation may still send stays as it is.
"""

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

# No answer will come: it is sent from there, without the mark of a redrive.
_GIVE_BACK = """
WITH sent AS (
    UPDATE poison_poison SET state = 'moved', moved_to_id = topic_id,
        redrives = redrives + 1, sent_at = %(now)s
    WHERE id = ANY(%(poisons)s) AND state = 'open'
      AND NOT EXISTS (SELECT FROM poison_hold WHERE poison_id = poison_poison.id)
    RETURNING id, redrives, topic_id
)
INSERT INTO poison_redrive (id, poison_id, n, topic_id, queue, outcome, detail,
    bookmark, epoch, copies, claimed_at, sent_at)
SELECT gen_random_uuid(), id, redrives, topic_id, %(source)s, 'moved', %(detail)s, '',
    0, 1, %(now)s, %(now)s
FROM sent RETURNING poison_id
"""

# It did not fail again: no consumer had it.
_TAKE_BACK = """
WITH back AS (
    UPDATE poison_redrive SET outcome = 'recurred', answered_at = %(now)s
    FROM poison_poison
    WHERE poison_poison.id = ANY(%(poisons)s) AND poison_poison.state = 'moved'
      AND poison_redrive.poison_id = poison_poison.id
      AND poison_redrive.n = poison_poison.redrives
      AND poison_redrive.outcome = 'moved' AND poison_redrive.queue = %(source)s
    RETURNING poison_id
)
UPDATE poison_poison SET state = 'open', moved_to_id = NULL
FROM back WHERE poison_poison.id = back.poison_id RETURNING poison_poison.id
"""


def drop(*, poisons: Sequence[int], now: datetime) -> set[int]:
    """Set to dropped those of these poisons that may be; return their ids.

    Open ones may, and silent ones, unless an operation holds them. It audits nothing.
    """
    values = {
        "now": now,
        "from": before(PoisonState.DROPPED),
        "silent_before": silent_before(now),
    }
    return _transition(_DROP, poisons, values)


def restore(*, poisons: Sequence[int]) -> set[int]:
    """Set dropped ones among these poisons to open again; return their ids."""
    return _transition(_RESTORE, poisons, {})


def give_back(
    *, poisons: Sequence[int], source: str, detail: str, now: datetime
) -> set[int]:
    """Record open poisons as sent back to their source; return the ids of these.

    The source sends them, as an outbox does its rows. Call it inside a transaction.
    """
    values = {"source": source, "detail": detail, "now": now}
    return _transition(_GIVE_BACK, poisons, values)


def take_back(*, poisons: Sequence[int], source: str, now: datetime) -> set[int]:
    """Open again poisons that were given back and are captured again; return their ids.

    Call it inside a transaction.
    """
    return _transition(_TAKE_BACK, poisons, {"source": source, "now": now})


def _transition(
    statement: str, poisons: Sequence[int], values: dict[str, Any]
) -> set[int]:
    """Lock poisons and change their states by SQL; return those that changed."""
    lock(poisons)
    with connection.cursor() as cursor:
        cursor.execute(statement, {**values, "poisons": list(poisons)})
        return {poison for (poison,) in cursor.fetchall()}
