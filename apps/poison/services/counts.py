"""Gather the counts of poisons, and check all counts every night.

A check counts at one moment. What is not committed then changes the poisons and their
counts alike, so the difference that it finds stays the same: it is mended by a change
of its own, while everybody goes on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection, transaction

from apps.core import advisory_locks
from apps.core.text_cleaning import storable
from apps.poison.models import PoisonCount, PoisonCountChange, PoisonCountCheck
from apps.poison.services import failure_count_gathering
from apps.poison.services.failure_count_gathering import WrongFailureCount

log = logging.getLogger(__name__)

CHECKING = "check of counts"
GATHERING = "gathering of counts"
# Changes of one transaction.
AT_ONCE = 50_000
MOST_NAMED = 5

_GATHER = """
WITH gone AS (
    DELETE FROM poison_count_change WHERE id IN (
        SELECT id FROM poison_count_change ORDER BY id LIMIT %(most)s)
    RETURNING problem_id, topic_id, state, number
), stored AS (
    INSERT INTO poison_count AS known (problem_id, topic_id, state, number)
    SELECT problem_id, topic_id, state, sum(number) FROM gone
    GROUP BY 1, 2, 3 HAVING sum(number) <> 0 ORDER BY 1, 2, 3
    ON CONFLICT (problem_id, topic_id, state)
        DO UPDATE SET number = known.number + excluded.number
)
SELECT count(*) FROM gone
"""

# The statement is one moment.
_DIFFERENCES = """
SELECT problem_id, topic_id, state, sum(number)::bigint, sum(stored)::bigint FROM (
    SELECT problem_id, topic_id,
           CASE WHEN state = 'moved' AND moved_to_id = topic_id THEN 'given back'
                WHEN state = 'open' AND recurrences > 0 THEN 'came back'
           ELSE state END AS state, count(*) AS number, 0 AS stored
    FROM poison_poison GROUP BY 1, 2, 3
    UNION ALL SELECT problem_id, topic_id, state, -number, number FROM poison_count
    UNION ALL SELECT problem_id, topic_id, state, -number, number
    FROM poison_count_change
) one
GROUP BY 1, 2, 3 HAVING sum(number) <> 0
ORDER BY abs(sum(number)) DESC, 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class WrongCount:
    """A count that was wrong: there are `missing` more poisons than were `counted`."""

    problem: int
    topic: int
    state: str
    missing: int
    counted: int

    def __str__(self) -> str:
        """Write which count of poisons was wrong, and by how much."""
        there = self.counted + self.missing
        return (
            f"problem {self.problem} on topic {self.topic}: {self.counted:,} "
            f"{self.state} instead of {there:,}"
        )


def gather() -> int:
    """Add changed states to the counts of poisons; return how many changes."""
    gathered = 0
    while True:
        number = _gather_some()
        gathered += number
        if number < AT_ONCE:
            return gathered


@transaction.atomic
def _gather_some() -> int:
    # Two at the same time would wait for each other's rows, in no order.
    advisory_locks.wait_for(GATHERING)
    with connection.cursor() as cursor:
        cursor.execute(_GATHER, {"most": AT_ONCE})
        (number,) = cursor.fetchone()
        return int(number)


def is_check_due(*, now: datetime) -> bool:
    """Tell whether the poison counts were not checked yet on this UTC day."""
    last = PoisonCountCheck.objects.values_list("checked_at", flat=True).first()
    return last is None or last.astimezone(UTC).date() < now.astimezone(UTC).date()


def check(*, now: datetime) -> list[WrongCount | WrongFailureCount] | None:
    """Count poisons and a day's failures; mend and return wrong counts.

    Returns None if another process checks them just now.
    """
    with advisory_locks.attempt(CHECKING) as check_lock:
        if check_lock is None:
            return None
        with transaction.atomic():
            wrong_poisons = _differences()
            PoisonCountChange.objects.bulk_create(
                PoisonCountChange(
                    problem_id=each.problem,
                    topic_id=each.topic,
                    state=each.state,
                    number=each.missing,
                )
                for each in wrong_poisons
            )
            # Last, because no change of failures is gathered until the end.
            wrong: list[WrongCount | WrongFailureCount] = [
                *wrong_poisons,
                *failure_count_gathering.mend(now=now),
            ]
            result: dict[str, Any] = {
                "checked_at": now,
                "wrong": len(wrong),
                "detail": storable("; ".join(map(str, wrong[:MOST_NAMED]))),
            }
            PoisonCountCheck.objects.update_or_create(id=1, defaults=result)
            # Of problems that have no message in this state any more. Who gathers locks
            # the same rows, in another order.
            advisory_locks.wait_for(GATHERING)
            PoisonCount.objects.filter(number=0).delete()
    if wrong:
        log.warning(
            "%d counts of messages were wrong, and are mended: %s",
            len(wrong),
            result["detail"],
        )
    return wrong


def _differences() -> list[WrongCount]:
    """Compare pages' stored counts of poisons with the poisons; return wrong ones."""
    with connection.cursor() as cursor:
        cursor.execute(_DIFFERENCES)
        return [WrongCount(*row) for row in cursor.fetchall()]
