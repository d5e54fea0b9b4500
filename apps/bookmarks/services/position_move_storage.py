"""Move the marks of a position, and store their previous state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max

from apps.bookmarks.models import BookmarkPosition, Mark, Move, Moved
from apps.bookmarks.runs_of_settled_positions import (
    Runs,
    as_text,
    from_postgres,
    watermark,
)
from apps.bookmarks.services.position_opening import fence


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkChange:
    """The effect of a move on one publisher's mark.

    `replayed` runs were settled and are delivered again. `passed_over` runs were not
    settled and will never be delivered.
    """

    publisher: str
    before: Runs
    after: Runs
    replayed: Runs
    passed_over: Runs

    @property
    def old(self) -> int:
        """Return the mark's watermark before the move."""
        return watermark(self.before)

    @property
    def new(self) -> int:
        """Return the mark's watermark after the move."""
        return watermark(self.after)

    @property
    def changes_nothing(self) -> bool:
        return self.before == self.after


# A move back, or to the watermark itself, replays all numbers after the target. A move
# forward keeps what is settled beyond the target.
_COMPARE = """
WITH compared AS (
    SELECT wish.publisher, coalesce(mark.settled, '{}') AS before,
           CASE WHEN lower(%(all)s::int8multirange - wish.target)
                     <= lower(%(all)s::int8multirange - coalesce(mark.settled, '{}'))
           THEN wish.target
           ELSE wish.target + coalesce(mark.settled, '{}') END AS after
    FROM unnest(%(publishers)s::text[], %(targets)s::int8multirange[])
         AS wish(publisher, target)
    LEFT JOIN bookmarks_mark mark
      ON mark.position_id = %(position)s AND mark.publisher = wish.publisher
)
SELECT publisher, before, after, before - after, after - before
FROM compared ORDER BY publisher
"""


def compare(*, position_id: int, targets: Mapping[str, Runs]) -> list[MarkChange]:
    """Compute what moving each publisher's mark to its target would change."""
    params: dict[str, str | int | list[str]] = {
        "all": "{[0,)}",
        "position": position_id,
        "publishers": list(targets),
        "targets": [as_text(runs) for runs in targets.values()],
    }
    with connection.cursor() as cursor:
        cursor.execute(_COMPARE, params)
        return [
            MarkChange(
                publisher=publisher,
                before=from_postgres(before),
                after=from_postgres(after),
                replayed=from_postgres(replayed),
                passed_over=from_postgres(passed_over),
            )
            for publisher, before, after, replayed, passed_over in cursor.fetchall()
        ]


def lock(*, position_id: int) -> BookmarkPosition:
    """Lock a position and its marks until the transaction ends, in that order."""
    positions = BookmarkPosition.objects.select_related("topic").locked()
    position = positions.get(pk=position_id)
    list(Mark.objects.filter(position=position).locked().values_list("pk"))
    return position


@transaction.atomic
def write(
    *,
    position: BookmarkPosition,
    changes: Sequence[MarkChange],
    actor: str,
    reason: str,
    restores: int | None,
    now: datetime,
) -> Move:
    """Move the marks of a locked position, and fence its holder."""
    epoch = position.epoch + 1
    _insert_empty_marks(position, [change.publisher for change in changes])
    fence(positions=[position], epoch=epoch)
    for change in changes:
        Mark.objects.filter(position=position, publisher=change.publisher).update(
            settled=change.after, processed=change.new, bookmark=""
        )
    BookmarkPosition.objects.filter(pk=position.pk).update(moved_at=now)
    move = Move.objects.create(
        position=position,
        epoch=epoch,
        at=now,
        actor=actor,
        reason=reason,
        restores_id=restores,
    )
    Moved.objects.bulk_create(
        Moved(
            move=move,
            publisher=change.publisher,
            before=change.before,
            after=change.after,
        )
        for change in changes
    )
    return move


def _insert_empty_marks(position: BookmarkPosition, publishers: Sequence[str]) -> None:
    """Insert empty marks of a position's publishers; leave existing ones."""
    Mark.objects.bulk_create(
        [
            Mark(
                position=position,
                publisher=publisher,
                epoch=position.epoch,
                processed=watermark(()),
                settled=(),
            )
            for publisher in publishers
        ],
        ignore_conflicts=True,
    )


def holder_settled_at(*, position_id: int) -> datetime | None:
    """Return when a position's holder last settled anything, or None."""
    marks = Mark.objects.filter(position=position_id)
    latest: datetime | None = marks.aggregate(at=Max("settled_at"))["at"]
    return latest


def furthest(*, topic_id: int) -> dict[str, int]:
    """Return a topic's highest known number of each publisher, of all positions."""
    with connection.cursor() as cursor:
        cursor.execute(_FURTHEST, [topic_id])
        return dict(cursor.fetchall())


_FURTHEST = """
SELECT mark.publisher, max(greatest(mark.head, mark.received, mark.processed))
FROM bookmarks_mark mark
JOIN bookmarks_position position ON position.id = mark.position_id
WHERE position.topic_id = %s GROUP BY mark.publisher
"""
