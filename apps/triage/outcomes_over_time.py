"""What became of the messages of an operation, by the time at which they were sent.

Nothing is written for it. Of a small operation each redrive is read; of a larger one
its windows, which count hundreds of messages each, so that the cost hardly grows with
its size. A window has only the time at which its newest message was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from apps.core.queryset_sql import read_by_index
from apps.poison.states import RedriveOutcome, silent_before
from apps.triage.models import Operation

# Items whose redrives are looked up one by one; some 30 ms.
MOST_READ = 5_000
MOST_BUCKETS = 60
# Windows that a bucket spans at least: with fewer, every other bucket would be empty.
WINDOWS_OF_BUCKET = 2
MINUTE, HOUR, DAY = 60, 3600, 86_400
WIDTHS = (
    *(number * MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * HOUR for number in (1, 2, 3, 6, 12)),
    *(number * DAY for number in (1, 2, 7, 14, 28, 91, 364)),
)
OUTCOMES = (
    RedriveOutcome.CONFIRMED.value,
    RedriveOutcome.RECURRED.value,
    RedriveOutcome.REFUSED.value,
    RedriveOutcome.SENT.value,
    RedriveOutcome.MOVED.value,
    RedriveOutcome.UNKNOWN.value,
)
# A Monday, so that buckets of a week or more begin on one.
_ORIGIN = datetime(2001, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeBucket:
    """What became of the messages that were sent in one span of time.

    `counts` is by outcome; of those that are still `sent`, `silent` got no answer for
    too long. After the operation, so do those that are `unknown`.
    """

    begins_at: datetime
    counts: Mapping[str, int]
    silent: int

    @property
    def total(self) -> int:
        """Count all messages handed to a broker in this bucket of time."""
        return sum(self.counts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomesOverTime:
    """Buckets of one width, at most `MOST_BUCKETS`, without a gap between them.

    `is_by_window`: each message counts at the time of the newest of its window.
    """

    width: timedelta
    buckets: list[OutcomeBucket]
    is_by_window: bool

    @property
    def ends_at(self) -> datetime:
        """Return the moment at which the chart's last bucket ends."""
        return self.buckets[-1].begins_at + self.width


# A refused message has no time of its sending. OFFSET 0 makes Postgres look up each
# redrive, whatever it knows of the table.
_MESSAGES = f"""
SELECT coalesce(own.sent_at, own.claimed_at) AS at,
       {", ".join(f"(own.outcome = '{name}')::int AS {name}" for name in OUTCOMES)}
FROM triage_selected_item item
CROSS JOIN LATERAL (
    SELECT outcome, sent_at, claimed_at FROM poison_redrive
    WHERE poison_id = item.poison_id AND operation = %(operation)s OFFSET 0
) own
WHERE item.operation_id = %(operation)s
"""  # noqa: S608 - made of our own names

_WINDOWS = f"""
SELECT marked_at AS at, {", ".join(OUTCOMES)} FROM poison_window
WHERE operation = %(operation)s AND marked_at IS NOT NULL
  AND {" + ".join(OUTCOMES)} > 0
"""  # noqa: S608 - made of our own names

# MATERIALIZED: otherwise Postgres finds the width again for each moment.
# Two buckets may be cut at the ends, so a span has room for two less.
_SELECT = f"""
WITH moment AS MATERIALIZED ({{moments}}), span AS (
    SELECT extract(epoch FROM max(at) - min(at)) AS seconds, count(*) AS number
    FROM moment
), bucket AS MATERIALIZED (
    SELECT coalesce(min(width) FILTER (
               WHERE width * %(most)s >= span.seconds
                 AND width * span.number >= %(least)s * span.seconds),
           max(width)) AS seconds
    FROM span CROSS JOIN unnest(%(widths)s::int8[]) AS width
)
SELECT date_bin(make_interval(secs => bucket.seconds), at, %(origin)s),
       bucket.seconds, {", ".join(f"sum({name})::int8" for name in OUTCOMES)},
       coalesce(sum({{silent}}) FILTER (WHERE at < %(silent_before)s), 0)::int8
FROM moment CROSS JOIN bucket GROUP BY 1, 2 ORDER BY 1
"""  # noqa: S608 - made of our own names


def outcomes_over_time(
    operation: Operation, *, now: datetime, most_read: int = MOST_READ
) -> OutcomesOverTime | None:
    """Count what became of an operation's messages, by time; None if none was sent.

    Windows are read instead of redrives if it has more than `most_read` items.
    """
    is_by_window = operation.total > most_read
    values: dict[str, Any] = {
        "operation": operation.pk,
        "most": MOST_BUCKETS - 2,
        "least": WINDOWS_OF_BUCKET if is_by_window else 0,
        "widths": list(WIDTHS),
        "origin": _ORIGIN,
        "silent_before": silent_before(now),
    }
    statement = _SELECT.format(
        moments=_WINDOWS if is_by_window else _MESSAGES,
        silent="sent + unknown" if operation.is_long_over(now) else "sent",
    )
    with transaction.atomic(), connection.cursor() as cursor:
        read_by_index()
        cursor.execute(statement, values)
        rows = cursor.fetchall()
    if not rows:
        return None
    width = timedelta(seconds=rows[0][1])
    buckets = {
        begins_at: OutcomeBucket(
            begins_at=begins_at,
            counts=dict(zip(OUTCOMES, numbers, strict=True)),
            silent=silent,
        )
        for begins_at, _, *numbers, silent in rows
    }
    return OutcomesOverTime(
        width=width,
        buckets=_without_gaps(buckets, width),
        is_by_window=is_by_window,
    )


def _without_gaps(
    buckets: Mapping[datetime, OutcomeBucket], width: timedelta
) -> list[OutcomeBucket]:
    """List an operation's outcomes by time, empty where nothing was sent."""
    first, last = min(buckets), max(buckets)
    moments = (first + width * at for at in range((last - first) // width + 1))
    nothing = dict.fromkeys(OUTCOMES, 0)
    return [
        buckets.get(moment) or OutcomeBucket(begins_at=moment, counts=nothing, silent=0)
        for moment in moments
    ]
