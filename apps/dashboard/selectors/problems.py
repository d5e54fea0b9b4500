"""The data of the problem pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import connection

from apps.core.errors import Absent
from apps.core.timeouts import TOO_SLOW, TooSlow, unless_slow
from apps.dashboard.list_params import ListParams, Origin, ProblemPageParams
from apps.dashboard.paging import (
    MOST_COUNTED,
    BoundedCount,
    ListPage,
    bounded_count,
    page,
)
from apps.dashboard.selectors import differences, messages, ranking
from apps.dashboard.selectors.differences import Differences
from apps.dashboard.selectors.messages import MessageList, last_failed_at
from apps.dashboard.selectors.neighbours import Neighbours, neighbours
from apps.poison import backlogs, message_contents, problem_search
from apps.poison.message_contents import FailureExcerpt
from apps.poison.models import Failure, Poison, Problem
from apps.poison.querysets import ProblemQuerySet
from apps.poison.states import DisplayState
from apps.team.rights import Principal

DAY = timedelta(hours=24)
HOURS = 24
TOP_VALUES = 5
# Count top values over the newest failures only, so that a huge problem opens fast.
MOST_FAILURES = 10_000
SORTS = {"": ("last_seen", "Last seen"), "first": ("first_seen", "First seen")}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemRow:
    """A problem with its numbers; TooSlow where counting took too long."""

    problem: Problem
    counts: Mapping[DisplayState, BoundedCount] | TooSlow
    hours: list[int] | TooSlow
    activity: str

    @property
    def total(self) -> BoundedCount | TooSlow:
        """Sum the messages of all states."""
        if isinstance(self.counts, TooSlow):
            return TOO_SLOW
        return _sum(self.counts.values())

    @property
    def open(self) -> BoundedCount | TooSlow:
        return self.count(DisplayState.OPEN)

    def count(self, state: DisplayState) -> BoundedCount | TooSlow:
        return TOO_SLOW if isinstance(self.counts, TooSlow) else self.counts[state]

    @property
    def failures_today(self) -> int | TooSlow:
        return TOO_SLOW if isinstance(self.hours, TooSlow) else sum(self.hours)

    @property
    def peak(self) -> int:
        """Return the most failures in an hour."""
        return 0 if isinstance(self.hours, TooSlow) else max(self.hours)

    @property
    def failures_last_hour(self) -> int | TooSlow:
        return TOO_SLOW if isinstance(self.hours, TooSlow) else self.hours[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemList:
    rows: list[ProblemRow]
    page: ListPage[Problem]
    total: BoundedCount | TooSlow
    last_failed_at: datetime | None

    @property
    def any_new(self) -> bool:
        """Return whether any problem listed is new."""
        return any(row.activity == "new" for row in self.rows)

    @property
    def peak(self) -> int:
        """Return the common scale of the rows' charts."""
        return peak(self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Top:
    """The most frequent values of one property among `whole` failures."""

    title: str
    values: list[tuple[str, int]]
    whole: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstFailure:
    """Where a problem began: version and host of its oldest stored failure."""

    version: str
    host: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StateLink:
    """A link to a problem's messages in one state, or in all, with their number."""

    label: str
    query: str
    count: BoundedCount | TooSlow


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemDetail:
    row: ProblemRow
    given_back: BoundedCount | TooSlow
    sample: FailureExcerpt | None
    first: FirstFailure | None
    tops: list[Top] | TooSlow
    neighbours: Neighbours
    messages: MessageList
    differences: Differences

    @property
    def states(self) -> list[StateLink]:
        """List the filters by state, each with its number."""
        links = [
            StateLink(
                label=state.capitalize(),
                query=f"is:{state}",
                count=self.row.count(state),
            )
            for state in DisplayState
        ]
        return [*links, StateLink(label="All", query="", count=self.row.total)]

    @property
    def shows_state(self) -> bool:
        """Return whether rows may differ in state: "sent" includes unfinished ones."""
        return self.messages.query.value_of("is") in {None, DisplayState.SENT}


def find(params: ListParams, principal: Principal, *, now: datetime) -> ProblemList:
    """List the problems that have a matching poison."""
    matching = matching_problems(params, principal).select_related("topic")
    shown_page = page(matching, field=_sort_field(params.sort), cursor=params.cursor)
    return ProblemList(
        rows=rows(shown_page.rows, now=now),
        page=shown_page,
        total=bounded_count(matching),
        last_failed_at=last_failed_at(principal),
    )


def one(
    problem_id: int, params: ProblemPageParams, principal: Principal, *, now: datetime
) -> ProblemDetail:
    """Load a problem for its page; raises Absent if this principal may not see it."""
    allowed = problem_search.visible(topics=principal.topics)
    problem = allowed.select_related("topic").filter(pk=problem_id).first()
    if problem is None:
        raise Absent(f"There is no problem {problem_id} here.")
    samples = message_contents.failures(
        Failure.objects.filter(problem=problem), limit=1
    )
    listed = messages.of_problem(problem_id, params.messages, principal)
    return ProblemDetail(
        row=rows([problem], now=now)[0],
        given_back=bounded_count(Poison.objects.filter(problem=problem).given_back()),
        sample=samples[0] if samples else None,
        first=_first_failure(problem.pk),
        tops=unless_slow(partial(_tops, problem.pk)),
        neighbours=_neighbours(problem, params.origin, principal),
        messages=listed,
        differences=differences.between(
            listed.page.rows,
            problem_id=problem_id,
            header=params.header,
            principal=principal,
            now=now,
        ),
    )


def matching_problems(
    params: ListParams | Origin, principal: Principal
) -> ProblemQuerySet:
    """Return the problems of a list, unordered."""
    return problem_search.matching(params.query, topics=principal.topics)


def rows(page_problems: Sequence[Problem], *, now: datetime) -> list[ProblemRow]:
    """Build a row for each problem: messages by state, failures by hour, activity."""
    ids = [problem.pk for problem in page_problems]
    counts = unless_slow(partial(_counts, ids))
    hours = unless_slow(partial(_hours, ids, now=now))
    return [
        ProblemRow(
            problem=problem,
            counts=counts if isinstance(counts, TooSlow) else counts[problem.pk],
            hours=hours if isinstance(hours, TooSlow) else hours[problem.pk],
            activity=_activity(problem, counts, now=now),
        )
        for problem in page_problems
    ]


def peak(problem_rows: Sequence[ProblemRow]) -> int:
    """Return the most failures in an hour, as the common scale of these rows."""
    return max((row.peak for row in problem_rows), default=0)


def _sort_field(sort: str) -> str:
    """Return the field that a list is sorted by."""
    return SORTS.get(sort, SORTS[""])[0]


def _neighbours(problem: Problem, origin: Origin, principal: Principal) -> Neighbours:
    """Return the neighbours in the list that the person came from."""
    if origin.is_overview:
        return ranking.neighbours(problem.pk, principal)
    listed = matching_problems(origin, principal)
    return neighbours(listed, problem, field=_sort_field(origin.sort))


def _sum(counts: Iterable[BoundedCount]) -> BoundedCount:
    return BoundedCount(sum(count.number for count in counts))


def _counts(ids: list[int]) -> dict[int, dict[DisplayState, BoundedCount]]:
    """Count the messages of each problem by state, up to a limit."""
    by_problem = backlogs.by_problem(ids, most=MOST_COUNTED + 1)
    return {
        problem: {state: BoundedCount(number) for state, number in numbers.items()}
        for problem, numbers in by_problem.items()
    }


def _activity(
    problem: Problem,
    counts: Mapping[int, Mapping[DisplayState, BoundedCount]] | TooSlow,
    *,
    now: datetime,
) -> str:
    """Return "quiet" without open messages, otherwise "new" or "ongoing"."""
    if (
        not isinstance(counts, TooSlow)
        and counts[problem.pk][DisplayState.OPEN].number == 0
    ):
        return "quiet"
    return "new" if now - problem.first_seen < DAY else "ongoing"


_HOURLY = """
SELECT problem_id, extract(epoch FROM %(now)s - failed_at)::int / 3600, count(*)
FROM poison_failure
WHERE problem_id = ANY(%(ids)s) AND failed_at > %(now)s - interval '24 hours'
  AND failed_at <= %(now)s AND day >= %(captured)s
GROUP BY 1, 2
"""


def _hours(ids: list[int], *, now: datetime) -> dict[int, list[int]]:
    """Count the failures of each of the last 24 hours, the oldest hour first."""
    hours = {pk: [0] * HOURS for pk in ids}
    # Clocks differ by minutes, so the day of capture may be the day before.
    captured = (now - 2 * DAY).date()
    with connection.cursor() as cursor:
        cursor.execute(_HOURLY, {"now": now, "ids": ids, "captured": captured})
        for problem, age, number in cursor.fetchall():
            hours[problem][HOURS - 1 - min(age, HOURS - 1)] += number
    return hours


def _first_failure(problem_id: int) -> FirstFailure | None:
    """Return version and host of a problem's first failure."""
    failures = Failure.objects.filter(problem=problem_id).order_by("failed_at", "id")
    first = failures.values_list("handler_version", "host").first()
    return FirstFailure(version=first[0] or "", host=first[1] or "") if first else None


PROPERTIES = {
    "handler_version": "Versions",
    "host": "Hosts",
    "client_name": "Consumers",
    "cause": "Causes",
}
# One scan of the newest failures counts all four properties.
_TOPS = """
SELECT property, value, number, whole FROM (
    SELECT property, value, count(*) AS number,
           sum(count(*)) OVER (PARTITION BY property)::bigint AS whole,
           row_number() OVER (PARTITION BY property ORDER BY count(*) DESC, value)
               AS place
    FROM (
        SELECT handler_version, host, client_name, cause FROM poison_failure
        WHERE problem_id = %(problem)s ORDER BY failed_at DESC LIMIT %(most)s
    ) newest,
    LATERAL (VALUES
        ('handler_version', coalesce(handler_version, '')),
        ('host', coalesce(host, '')),
        ('client_name', client_name),
        ('cause', cause)
    ) AS each(property, value)
    GROUP BY property, value
) ranked
WHERE place <= %(shown)s
ORDER BY property, place
"""


def _tops(problem_id: int) -> list[Top]:
    """Count the most frequent versions, hosts, consumers and causes, in this order."""
    values = {"problem": problem_id, "most": MOST_FAILURES, "shown": TOP_VALUES}
    by_property: dict[str, list[tuple[str, int, int]]] = {
        name: [] for name in PROPERTIES
    }
    with connection.cursor() as cursor:
        cursor.execute(_TOPS, values)
        for name, value, number, whole in cursor.fetchall():
            by_property[name].append((value, number, whole))
    return [
        Top(
            title=PROPERTIES[name],
            values=[(value, number) for value, number, _ in ranked],
            whole=ranked[0][2],
        )
        for name, ranked in by_property.items()
        if any(value for value, _, _ in ranked)
    ]
