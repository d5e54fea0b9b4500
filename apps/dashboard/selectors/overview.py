"""What somebody wants to know first: what changed, what goes on, what is not well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import connection

from apps.brokers.models import Topic
from apps.core.hurry import unless_slow
from apps.dashboard.paging import Count, counted
from apps.dashboard.selectors import guards, health, operations, topics
from apps.dashboard.selectors.guards import Idle
from apps.dashboard.selectors.health import Night, Sign
from apps.dashboard.selectors.messages import last_failed_at
from apps.dashboard.selectors.operations import OperationRow
from apps.dashboard.selectors.topics import Asked, TopicRow
from apps.poison.models import Poison, Problem
from apps.poison.querysets import ProblemQuerySet
from apps.team.rights import Principal

HOUR, DAY = timedelta(hours=1), timedelta(hours=24)
# Whoever was away for longer is told of this much, and reads the reports.
LONGEST = timedelta(days=7)
MOST_SHOWN = 5
MOST_TOPICS = 10
MOST_OPERATIONS = 6
# How many of the newest messages, or problems, are looked through.
MOST_MESSAGES = 10_000
MOST_PROBLEMS = 200
# Growing: so many in the last hour, and so many times as many as in an hour before.
LEAST_GROWN = 3
GROWS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """A problem, and the number that brings it here."""

    problem: Problem
    number: int
    usual: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What changed since then; a part is None where asking for it took too long."""

    since: datetime
    new: list[Problem] | None
    new_number: Count
    came_back: list[Changed] | None
    growing: list[Changed] | None

    @property
    def is_quiet(self) -> bool:
        return not (self.new or self.came_back or self.growing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    changes: Changes
    topics: list[TopicRow]
    more_topics: bool
    operations: list[OperationRow]
    idle: Idle
    signs: list[Sign]
    night: Night
    open: Count
    last_failed_at: datetime | None

    @property
    def has_sample(self) -> bool:
        return any(row.is_sample for row in self.topics)

    @property
    def is_new_here(self) -> bool:
        """Tell whether nothing ever came in, and nothing could."""
        return not self.topics and self.last_failed_at is None


def find(since: datetime | None, principal: Principal, *, now: datetime) -> Overview:
    shown, more = topics.failing_lately(principal, most=MOST_TOPICS, now=now)
    mine = Poison.objects.on_topics(principal.topics)
    visible = Topic.objects.matching(principal.topics)
    return Overview(
        changes=changes(since or now - DAY, principal, now=now),
        topics=shown,
        more_topics=more,
        operations=operations.latest(principal, most=MOST_OPERATIONS),
        idle=guards.idle(visible, now=now),
        signs=[
            *health.signs(principal, now=now),
            *guards.signs(visible, now=now),
        ],
        night=health.night(now=now),
        open=counted(mine.open()),
        last_failed_at=last_failed_at(principal),
    )


def changes(since: datetime, principal: Principal, *, now: datetime) -> Changes:
    since = max(since, now - LONGEST)
    new = _new(since, principal)
    newest = new.order_by("-first_seen", "-id")[:MOST_SHOWN]
    return Changes(
        since=since,
        new=unless_slow(partial(list, newest), instead=None),
        new_number=counted(new),
        came_back=unless_slow(partial(_came_back, since, principal), instead=None),
        growing=unless_slow(partial(_growing, principal, now=now), instead=None),
    )


def _new(since: datetime, principal: Principal) -> ProblemQuerySet:
    still_open = Poison.objects.on_topics(principal.topics).open()
    # What was first seen since then was last seen since then: that has an index.
    seen = Problem.objects.filter(last_seen__gt=since, first_seen__gt=since)
    return seen.with_poisons(still_open).select_related("topic")


def _came_back(since: datetime, principal: Principal) -> list[Changed]:
    """Find the problems whose messages were requeued and have failed again."""
    mine = Poison.objects.on_topics(principal.topics).open()
    failed = mine.filter(last_failed_at__gt=since).recent_first()
    newest = failed.values("problem_id", "recurrences")[:MOST_MESSAGES]
    statement, parameters = newest.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT problem_id, count(*) FROM ({statement}) newest"  # noqa: S608 - the ORM wrote the statement
            f" WHERE recurrences > 0 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MOST_SHOWN}",
            parameters,
        )
        numbers: dict[int, int] = dict(cursor.fetchall())
    found = _problems(numbers)
    return [Changed(problem=found[pk], number=number) for pk, number in numbers.items()]


_GROWTH = """
SELECT problem_id, count(*) FILTER (WHERE failed_at > %(hour)s),
       count(*) FILTER (WHERE failed_at <= %(hour)s) / 24.0
FROM poison_failure
WHERE problem_id = ANY(%(ids)s) AND failed_at > %(day)s AND failed_at <= %(now)s
  AND day >= %(captured)s
GROUP BY 1
"""


def _growing(principal: Principal, *, now: datetime) -> list[Changed]:
    """Find what failed much more in the last hour than in the hours of the day before.

    A problem that is younger than this hour has no day before, and is new.
    """
    poisons = Poison.objects.on_topics(principal.topics)
    active = Problem.objects.filter(last_seen__gt=now - HOUR, first_seen__lt=now - HOUR)
    newest = active.with_poisons(poisons).recent_first()[:MOST_PROBLEMS]
    ids = list(newest.values_list("pk", flat=True))
    asked: Asked = {
        "ids": ids,
        "now": now,
        "hour": now - HOUR,
        "day": now - HOUR - DAY,
        # A clock may be minutes ahead of the day of capture.
        "captured": (now - HOUR - 2 * DAY).date(),
    }
    with connection.cursor() as cursor:
        cursor.execute(_GROWTH, asked)
        told = [(pk, number, float(usual)) for pk, number, usual in cursor.fetchall()]
    grown = [each for each in told if _grows(*each[1:])]
    fastest = sorted(grown, key=lambda each: -each[1] / (each[2] or 1 / 24))
    found = _problems(pk for pk, _, _ in fastest[:MOST_SHOWN])
    return [
        Changed(problem=found[pk], number=number, usual=usual)
        for pk, number, usual in fastest[:MOST_SHOWN]
    ]


def _grows(number: int, usual: float) -> bool:
    return number >= LEAST_GROWN and number >= GROWS * usual


def _problems(ids: Iterable[int]) -> dict[int, Problem]:
    return Problem.objects.select_related("topic").in_bulk(list(ids))
