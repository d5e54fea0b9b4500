"""Problems as their pages show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import F

from apps.core.errors import Absent
from apps.dashboard.asked import Asked
from apps.dashboard.paging import Count as Counted
from apps.dashboard.paging import Page, counted, page
from apps.dashboard.selectors.beside import Beside, beside
from apps.dashboard.selectors.messages import last_failed_at
from apps.poison import reading
from apps.poison.models import Failure, Poison, Problem
from apps.poison.querysets import ProblemQuerySet
from apps.poison.reading import FailureSeen
from apps.poison.states import Shown
from apps.team.rights import Principal

DAY = timedelta(hours=24)
HOURS = 24
TOP_VALUES = 5
# Top values are counted over the newest failures, so that a huge problem opens fast.
MOST_FAILURES = 10_000
SORTS = {"": ("last_seen", "Last seen"), "first": ("first_seen", "First seen")}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemRow:
    problem: Problem
    counts: dict[Shown, int]
    hours: list[int]
    life: str

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def open(self) -> int:
        return self.counts[Shown.OPEN]

    @property
    def failures_today(self) -> int:
        return sum(self.hours)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemList:
    rows: list[ProblemRow]
    page: Page[Problem]
    total: Counted
    last_failed_at: datetime | None

    @property
    def any_new(self) -> bool:
        return any(row.life == "new" for row in self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Top:
    """The values of one property of a problem's newest failures, commonest first."""

    title: str
    values: list[tuple[str, int]]

    @property
    def whole(self) -> int:
        return sum(number for _, number in self.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemDetail:
    row: ProblemRow
    sample: FailureSeen | None
    tops: list[Top]
    beside: Beside


def find(asked: Asked, principal: Principal, *, now: datetime) -> ProblemList:
    """List the problems that have a poison which matches."""
    poisons = Poison.objects.on_topics(principal.topics).matching(asked.query)
    problems = Problem.objects.with_poisons(poisons).select_related("topic")
    field, _ = SORTS.get(asked.sort, SORTS[""])
    shown = page(problems, field=field, cursor=asked.cursor)
    return ProblemList(
        rows=_rows(shown.rows, now=now),
        page=shown,
        total=counted(problems),
        last_failed_at=last_failed_at(principal),
    )


def one(problem_id: int, principal: Principal, *, now: datetime) -> ProblemDetail:
    """Find a problem that this principal may see; raises Absent otherwise."""
    allowed = _visible(principal)
    problem = allowed.select_related("topic").filter(pk=problem_id).first()
    if problem is None:
        raise Absent(f"There is no problem {problem_id} here.")
    samples = reading.failures(Failure.objects.filter(problem=problem), limit=1)
    return ProblemDetail(
        row=_rows([problem], now=now)[0],
        sample=samples[0] if samples else None,
        tops=_tops(problem.pk),
        beside=beside(allowed, problem, field="last_seen"),
    )


def _visible(principal: Principal) -> ProblemQuerySet:
    poisons = Poison.objects.on_topics(principal.topics)
    return Problem.objects.with_poisons(poisons)


def _rows(problems: Sequence[Problem], *, now: datetime) -> list[ProblemRow]:
    ids = [problem.pk for problem in problems]
    counts, hours = Poison.objects.counted_by_problem(ids), _hours(ids, now=now)
    return [
        ProblemRow(
            problem=problem,
            counts=counts[problem.pk],
            hours=hours[problem.pk],
            life=_life(problem, counts[problem.pk], now=now),
        )
        for problem in problems
    ]


def _life(problem: Problem, counts: dict[Shown, int], *, now: datetime) -> str:
    if counts[Shown.OPEN] == 0:
        return "quiet"
    return "new" if now - problem.first_seen < DAY else "ongoing"


_HOURLY = """
SELECT problem_id, extract(epoch FROM %(now)s - failed_at)::int / 3600, count(*)
FROM poison_failure
WHERE problem_id = ANY(%(ids)s) AND failed_at > %(now)s - interval '24 hours'
  AND failed_at <= %(now)s
GROUP BY 1, 2
"""


def _hours(ids: list[int], *, now: datetime) -> dict[int, list[int]]:
    """Count the failures of each of the last 24 hours, the oldest hour first."""
    hours = {pk: [0] * HOURS for pk in ids}
    with connection.cursor() as cursor:
        cursor.execute(_HOURLY, {"now": now, "ids": ids})
        for problem, age, number in cursor.fetchall():
            hours[problem][HOURS - 1 - min(age, HOURS - 1)] += number
    return hours


def _tops(problem_id: int) -> list[Top]:
    properties = {
        "Consumers": "client_name",
        "Hosts": "host",
        "Versions": "handler_version",
        "Causes": "cause",
    }
    tops = [
        Top(title=title, values=_top_values(problem_id, field))
        for title, field in properties.items()
    ]
    return [top for top in tops if any(value for value, _ in top.values)]


def _top_values(problem_id: int, field: str) -> list[tuple[str, int]]:
    failures = Failure.objects.filter(problem=problem_id).order_by("-failed_at")
    newest = failures.values(value=F(field))[:MOST_FAILURES]
    statement, parameters = newest.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT coalesce(value, ''), count(*) FROM ({statement}) newest"  # noqa: S608 - the ORM wrote the statement
            f" GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {TOP_VALUES}",
            parameters,
        )
        values: list[tuple[str, int]] = cursor.fetchall()
        return values
