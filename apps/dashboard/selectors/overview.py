"""The data of the overview: alarms, problems that need a person, current numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Count

from apps.brokers.models import Topic
from apps.brokers.querysets import TopicQuerySet
from apps.core.timeouts import TooSlow, unless_slow
from apps.dashboard.paging import BoundedCount, bounded_count
from apps.dashboard.selectors import guards, health, operations, problems, topics
from apps.dashboard.selectors.guards import IdleGuards
from apps.dashboard.selectors.health import Alarm, ComponentStatus, NightlyReport
from apps.dashboard.selectors.messages import last_failed_at
from apps.dashboard.selectors.operations import ListedOperation
from apps.dashboard.selectors.problems import ProblemRow
from apps.dashboard.selectors.ranking import MOST_PROBLEMS, Ranking, ranked
from apps.dashboard.selectors.topics import TopicRow, peak
from apps.poison import backlogs
from apps.poison.models import Poison, Problem
from apps.poison.problem_search import matching
from apps.poison.query import Query, Term
from apps.poison.querysets import ProblemQuerySet
from apps.poison.states import DisplayState
from apps.team.rights import Principal

DAY = timedelta(hours=24)
# The page counts new problems over at most this time.
LONGEST = timedelta(days=7)
OPEN = Query((Term("is", DisplayState.OPEN),))
MOST_SHOWN = 10
MOST_TOPICS = 10
MOST_OPERATIONS = 6
# In each problem, this many of the newest open messages are searched for requeues.
MOST_SEARCHED = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenProblemRow:
    """A problem with open messages; `came_back` counts those requeued before."""

    row: ProblemRow
    came_back: int | TooSlow

    @property
    def came_back_at_least(self) -> bool:
        """Return whether more messages may have come back than were searched."""
        number = self.row.open
        return isinstance(number, TooSlow) or number.number > MOST_SEARCHED


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """The problems that need a person, worst first.

    Without `is_ranked` counting took too long, and these are the problems that failed
    last. Without `is_whole` only the last `ranked` problems were compared.
    """

    rows: list[OpenProblemRow]
    others: int
    is_ranked: bool
    is_whole: bool
    new: BoundedCount | TooSlow
    since: datetime
    ranked: int

    @property
    def any_new(self) -> bool:
        """Return whether any problem listed is new."""
        return any(each.row.activity == "new" for each in self.rows)

    @property
    def peak(self) -> int:
        """Return the common scale of the rows' charts."""
        return problems.peak([each.row for each in self.rows])


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    alarms: list[Alarm]
    needs: Needs
    topics: list[TopicRow]
    more_topics: bool
    operations: list[ListedOperation]
    idle: IdleGuards
    oversize: list[Topic]
    statuses: list[ComponentStatus]
    nightly_report: NightlyReport
    open: BoundedCount | TooSlow
    last_failed_at: datetime | None

    @property
    def has_sample(self) -> bool:
        return any(row.is_sample for row in self.topics)

    @property
    def is_new_here(self) -> bool:
        """Return whether the installation has no topic and never had a message."""
        return not self.topics and self.last_failed_at is None

    @property
    def topics_peak(self) -> int:
        """Return the common scale of the topics' charts."""
        return peak(self.topics)


def find(since: datetime | None, principal: Principal, *, now: datetime) -> Overview:
    """Load all that the overview shows; `since` is the previous visit."""
    ranking = ranked(principal)
    first = () if isinstance(ranking, TooSlow) else ranking.topics
    topic_rows, more = topics.worst(principal, first=first, most=MOST_TOPICS, now=now)
    visible = Topic.objects.matching(principal.topics)
    report, system = health.nightly_report(now=now), health.check(principal, now=now)
    return Overview(
        alarms=[*system.alarms, *health.nightly_report_alarms(report)],
        needs=needs(ranking, since or now - DAY, principal, now=now),
        topics=topic_rows,
        more_topics=more,
        operations=operations.latest(principal, most=MOST_OPERATIONS),
        idle=guards.idle(visible, now=now),
        oversize=oversize(visible),
        statuses=[*system.statuses, *guards.statuses(visible, now=now)],
        nightly_report=report,
        open=bounded_count(Poison.objects.on_topics(principal.topics).open()),
        last_failed_at=last_failed_at(principal),
    )


def oversize(visible: TopicQuerySet) -> list[Topic]:
    """List topics with oversize messages, each with their `number`."""
    there = visible.filter(oversize__isnull=False)
    return list(
        there.annotate(number=Count("oversize")).order_by("-number", "name")[
            :MOST_TOPICS
        ]
    )


def needs(
    ranking: Ranking | TooSlow,
    since: datetime,
    principal: Principal,
    *,
    now: datetime,
) -> Needs:
    """Rank the problems that need a person, and count those new since a time."""
    since = max(since, now - LONGEST)
    if isinstance(ranking, TooSlow):
        ids, is_whole = [], False
        shown_problems = _failed_last(principal)
    else:
        ids, is_whole = ranking.ids, ranking.is_whole
        shown_problems = _in_order(ids[:MOST_SHOWN])
    return Needs(
        rows=_rows(shown_problems, now=now),
        others=max(len(ids) - len(shown_problems), 0),
        is_ranked=not isinstance(ranking, TooSlow),
        is_whole=is_whole,
        ranked=MOST_PROBLEMS,
        new=bounded_count(_new_problems(since, principal)),
        since=since,
    )


def _in_order(ids: Sequence[int]) -> list[Problem]:
    """Load problems in the order of their ids."""
    by_id = Problem.objects.select_related("topic").in_bulk(ids)
    return [by_id[pk] for pk in ids]


def _failed_last(principal: Principal) -> list[Problem]:
    """Return the problems that failed last, where ranking took too long."""
    with_open = matching(OPEN, topics=principal.topics)
    return list(with_open.recent_first().select_related("topic")[:MOST_SHOWN])


def _rows(shown_problems: Sequence[Problem], *, now: datetime) -> list[OpenProblemRow]:
    """Add to each problem how many of its messages came back."""
    count = partial(
        backlogs.recurred_by_problem, [p.pk for p in shown_problems], most=MOST_SEARCHED
    )
    numbers = unless_slow(count)
    return [
        OpenProblemRow(
            row=row,
            came_back=numbers
            if isinstance(numbers, TooSlow)
            else numbers.get(row.problem.pk, 0),
        )
        for row in problems.rows(shown_problems, now=now)
    ]


def _new_problems(since: datetime, principal: Principal) -> ProblemQuerySet:
    """Return the problems with open messages that first failed since a time."""
    # `last_seen` is redundant here, but it has an index.
    with_open = matching(OPEN, topics=principal.topics)
    return with_open.filter(last_seen__gt=since, first_seen__gt=since)
