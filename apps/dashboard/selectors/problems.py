"""The data of the problem pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from apps.core.errors import Absent
from apps.core.statement_timeouts import TOO_SLOW, TooSlow, unless_slow
from apps.dashboard.keyset_pagination import (
    BoundedCount,
    ListPage,
    bounded_count,
    page,
)
from apps.dashboard.list_params import ListParams, Origin, ProblemPageParams
from apps.dashboard.selectors import (
    messages,
    problem_message_comparison,
    problem_ranking,
)
from apps.dashboard.selectors.messages import MessageList, last_failed_at
from apps.dashboard.selectors.previous_and_next_row import Neighbours, neighbours
from apps.dashboard.selectors.problem_message_comparison import Differences
from apps.poison import (
    failure_hours,
    message_contents,
    poison_counts_by_state,
    problem_search,
)
from apps.poison.failure_hours import FailureHours
from apps.poison.message_contents import FailureExcerpt
from apps.poison.models import Failure, Problem
from apps.poison.poison_counts_by_state import StateCounts
from apps.poison.querysets import ProblemQuerySet
from apps.poison.states import DisplayState
from apps.team.rights import Principal

DAY = timedelta(hours=24)
TOP_VALUES = 5
# Count top values over the newest failures only, so that a huge problem opens fast.
MOST_FAILURES = 2_000
SORTS = {"": ("last_seen", "Last seen"), "first": ("first_seen", "First seen")}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemRow:
    """A problem with its numbers; TooSlow where counting took too long."""

    problem: Problem
    counts: StateCounts | TooSlow
    hours: list[int] | TooSlow
    activity: str

    @property
    def total(self) -> int | TooSlow:
        """Sum the messages of a problem in all states; TooSlow if not counted."""
        if isinstance(self.counts, TooSlow):
            return TOO_SLOW
        return sum(self.counts.states.values())

    @property
    def open(self) -> int | TooSlow:
        return self.count(DisplayState.OPEN)

    @property
    def given_back(self) -> int | TooSlow:
        return TOO_SLOW if isinstance(self.counts, TooSlow) else self.counts.given_back

    @property
    def came_back(self) -> int | TooSlow:
        """Count the problem's open messages that failed again after a requeue."""
        return TOO_SLOW if isinstance(self.counts, TooSlow) else self.counts.came_back

    def count(self, state: DisplayState) -> int | TooSlow:
        if isinstance(self.counts, TooSlow):
            return TOO_SLOW
        return self.counts.states[state]

    @property
    def failures_today(self) -> int | TooSlow:
        return TOO_SLOW if isinstance(self.hours, TooSlow) else sum(self.hours)

    @property
    def peak(self) -> int:
        """Return the problem's most failures in an hour."""
        return 0 if isinstance(self.hours, TooSlow) else max(self.hours)

    @property
    def failures_last_hour(self) -> int | TooSlow:
        return TOO_SLOW if isinstance(self.hours, TooSlow) else self.hours[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemList:
    """A page of problems; only an empty one has `last_failed_at`, of any message."""

    rows: list[ProblemRow]
    page: ListPage[Problem]
    total: BoundedCount | TooSlow
    last_failed_at: datetime | None

    @property
    def any_new(self) -> bool:
        """Tell whether any problem listed is new."""
        return any(row.activity == "new" for row in self.rows)

    @property
    def peak(self) -> int:
        """Return the listed problems' most failures in an hour, their scale."""
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
class FailureBreakdown:
    """What the newest failures of a problem have in common, and the first of all.

    `first` is None while the problem has no failure.
    """

    tops: list[Top]
    first: FirstFailure | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StateLink:
    """A link to a problem's messages in one state, or in all, with their number."""

    label: str
    query: str
    count: int | TooSlow


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemDetail:
    row: ProblemRow
    sample: FailureExcerpt | None
    first: FirstFailure | None
    tops: list[Top] | TooSlow
    neighbours: Neighbours
    messages: MessageList
    differences: Differences

    @property
    def states(self) -> list[StateLink]:
        """List a problem's message filters by state, each with its number."""
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
        """Tell whether the messages listed on a problem's page may differ in state.

        Those of "sent" do: unfinished ones are among them.
        """
        return self.messages.query.value_of("is") in {None, DisplayState.SENT}


def find(params: ListParams, principal: Principal, *, now: datetime) -> ProblemList:
    """List a page of the visible problems with a message that matches the query."""
    matching = matching_problems(params, principal).select_related("topic")
    shown_page = page(matching, field=_sort_field(params.sort), cursor=params.cursor)
    return ProblemList(
        rows=rows(shown_page.rows, now=now),
        page=shown_page,
        total=bounded_count(
            problem_search.to_count(params.query, topics=principal.topics)
        ),
        last_failed_at=None if shown_page.rows else last_failed_at(principal),
    )


def one(
    problem_id: int, params: ProblemPageParams, principal: Principal, *, now: datetime
) -> ProblemDetail:
    """Load a problem for its page; raises Absent if this principal may not see it."""
    allowed = problem_search.visible(topics=principal.topics)
    problem = allowed.select_related("topic").filter(pk=problem_id).first()
    if problem is None:
        raise Absent(f"There is no problem {problem_id} here.")
    listed = messages.of_problem(problem_id, params.messages, principal)
    breakdown = unless_slow(partial(_breakdown, problem.pk))
    return ProblemDetail(
        row=rows([problem], now=now)[0],
        sample=_newest_failure(problem),
        first=_first_failure(problem.pk)
        if isinstance(breakdown, TooSlow)
        else breakdown.first,
        tops=breakdown if isinstance(breakdown, TooSlow) else breakdown.tops,
        neighbours=_neighbours(problem, params.origin, principal),
        messages=listed,
        differences=problem_message_comparison.between(
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
    """Return the problems that a list's query matches, unordered."""
    return problem_search.matching(params.query, topics=principal.topics)


def rows(page_problems: Sequence[Problem], *, now: datetime) -> list[ProblemRow]:
    """Build a row for each problem: messages by state, failures by hour, activity."""
    ids = [problem.pk for problem in page_problems]
    hours = unless_slow(partial(failure_hours.count, problems=ids, now=now))
    return rows_with(hours, page_problems, now=now)


def rows_with(
    hours: FailureHours | TooSlow, page_problems: Sequence[Problem], *, now: datetime
) -> list[ProblemRow]:
    """Build a list row for each problem, from failures by hour counted before."""
    ids = [problem.pk for problem in page_problems]
    counts = unless_slow(partial(poison_counts_by_state.by_problem, ids))
    return [
        ProblemRow(
            problem=problem,
            counts=counts if isinstance(counts, TooSlow) else counts[problem.pk],
            hours=hours if isinstance(hours, TooSlow) else hours.by_problem[problem.pk],
            activity=_activity(problem, counts, now=now),
        )
        for problem in page_problems
    ]


def peak(problem_rows: Sequence[ProblemRow]) -> int:
    """Return these problems' most failures in an hour, their common scale."""
    return max((row.peak for row in problem_rows), default=0)


def _sort_field(sort: str) -> str:
    """Return the field by which the list of problems is sorted."""
    return SORTS.get(sort, SORTS[""])[0]


def _neighbours(problem: Problem, origin: Origin, principal: Principal) -> Neighbours:
    """Return a problem's neighbours in the list that the person came from."""
    if origin.is_overview:
        return problem_ranking.neighbours(problem.pk, principal)
    listed = matching_problems(origin, principal)
    return neighbours(listed, problem, field=_sort_field(origin.sort))


def _activity(
    problem: Problem,
    counts: Mapping[int, StateCounts] | TooSlow,
    *,
    now: datetime,
) -> str:
    """Return a problem's activity: "quiet" without open messages, "new", "ongoing"."""
    if (
        not isinstance(counts, TooSlow)
        and counts[problem.pk].states[DisplayState.OPEN] == 0
    ):
        return "quiet"
    return "new" if now - problem.first_seen < DAY else "ongoing"


def _newest_failure(problem: Problem) -> FailureExcerpt | None:
    """Return a problem's newest failure, or None.

    Its last days are searched first: Postgres plans a scan of each day.
    """
    failures = Failure.objects.filter(problem=problem)
    midnight = problem.last_seen.replace(hour=0, minute=0, second=0, microsecond=0)
    # What failed after it was not captured earlier: no clock is a day ahead.
    lately = _newest(failures.filter(day__gte=(midnight - DAY).date()))
    if lately is not None and lately.failure.failed_at >= midnight:
        return lately
    return _newest(failures)


def _newest(failures: QuerySet[Failure]) -> FailureExcerpt | None:
    """Return the newest of the failures of a problem, or None without any."""
    return next(iter(message_contents.failures(failures, limit=1)), None)


def _first_failure(problem_id: int) -> FirstFailure | None:
    """Return the version and host of a problem's first failure, or None without any.

    It is read alone only where the breakdown took too long.
    """
    failures = Failure.objects.filter(problem=problem_id).order_by("failed_at", "id")
    first = failures.values_list("handler_version", "host").first()
    return FirstFailure(version=first[0] or "", host=first[1] or "") if first else None


PROPERTIES = {
    "handler_version": "Versions",
    "host": "Hosts",
    "client_name": "Consumers",
    "cause": "Causes",
}
# One scan of the newest failures counts all four properties. Most failures agree in all
# four, so they are counted together first.
_TOPS = """
WITH alike AS (
    SELECT handler_version, host, client_name, cause, sum(times) AS times
    FROM (
        SELECT handler_version, host, client_name, cause, times FROM poison_failure
        WHERE problem_id = %(problem)s ORDER BY failed_at DESC LIMIT %(most)s
    ) newest GROUP BY 1, 2, 3, 4
), ranked AS (
    SELECT property, value, sum(times)::bigint AS number,
           sum(sum(times)) OVER (PARTITION BY property)::bigint AS whole,
           row_number() OVER (PARTITION BY property ORDER BY sum(times) DESC, value)
               AS place
    FROM alike, LATERAL (VALUES
        ('handler_version', coalesce(handler_version, '')),
        ('host', coalesce(host, '')),
        ('client_name', client_name), ('cause', cause)
    ) AS each(property, value)
    GROUP BY property, value
)
SELECT property, value, number, whole,
       coalesce(earliest.handler_version, ''), coalesce(earliest.host, '')
FROM ranked,
(
    SELECT handler_version, host FROM poison_failure
    WHERE problem_id = %(problem)s ORDER BY failed_at, id LIMIT 1
) earliest
WHERE place <= %(shown)s
ORDER BY property, place
"""


def _breakdown(problem_id: int) -> FailureBreakdown:
    """Count a problem's failures by version, host, consumer and cause.

    Returns the most frequent values, and the version and host of its first failure.
    """
    values = {"problem": problem_id, "most": MOST_FAILURES, "shown": TOP_VALUES}
    with connection.cursor() as cursor:
        cursor.execute(_TOPS, values)
        counts = cursor.fetchall()
    if not counts:
        return FailureBreakdown(tops=[], first=None)
    *_, version, host = counts[0]
    return FailureBreakdown(
        tops=_most_frequent(counts), first=FirstFailure(version=version, host=host)
    )


def _most_frequent(counts: Sequence[Sequence[Any]]) -> list[Top]:
    """Group the counted failures of a problem by property, without empty properties."""
    by_property: dict[str, list[tuple[str, int, int]]] = {
        name: [] for name in PROPERTIES
    }
    for name, value, number, whole, *_ in counts:
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
