"""The data of the overview: alarms, problems that need a person, current numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Count

from apps.brokers.models import Topic
from apps.brokers.topic_querysets import TopicQuerySet
from apps.capture.models import OversizeMessage
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.dashboard.keyset_pagination import BoundedCount, bounded_count
from apps.dashboard.selectors import (
    consumer_guard_states,
    health,
    outboxes_in_need,
    problems,
    topics,
    triage_operations,
)
from apps.dashboard.selectors.consumer_guard_states import IdleGuards
from apps.dashboard.selectors.health import Alarm, ComponentStatus, NightlyReport
from apps.dashboard.selectors.messages import last_failed_at
from apps.dashboard.selectors.outboxes_in_need import OutboxesInNeed
from apps.dashboard.selectors.problem_ranking import (
    MOST_PROBLEMS,
    Ranking,
    rank_problems,
)
from apps.dashboard.selectors.problems import ProblemRow
from apps.dashboard.selectors.topics import TopicRow, peak
from apps.dashboard.selectors.triage_operations import OperationStatus
from apps.poison import failure_hours
from apps.poison.failure_hours import FailureHours
from apps.poison.models import Problem
from apps.poison.problem_search import OPEN, matching
from apps.poison.querysets import ProblemQuerySet
from apps.team.rights import Principal
from apps.triage.models import Operation

DAY = timedelta(hours=24)
# The page counts new problems over at most this time.
LONGEST = timedelta(days=7)
MOST_SHOWN = 10
MOST_TOPICS = 10
MOST_OPERATIONS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """The problems that need a person, worst first.

    Without `is_ranked` counting took too long, and these are the problems that failed
    last. Without `is_whole` only the last `ranked` problems were compared.
    """

    rows: list[ProblemRow]
    others: int
    is_ranked: bool
    is_whole: bool
    new: BoundedCount | TooSlow
    since: datetime
    ranked: int

    @property
    def any_new(self) -> bool:
        """Tell whether any problem listed is new."""
        return any(each.activity == "new" for each in self.rows)

    @property
    def peak(self) -> int:
        """Return the listed problems' most failures in an hour, their scale."""
        return problems.peak(self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """All that the overview shows; `last_failed_at` only where nothing needs a person.

    `running` are all unfinished operations; `operations` the newest, those first.
    """

    alarms: list[Alarm]
    needs: Needs
    topics: list[TopicRow]
    more_topics: bool
    running: list[Operation]
    operations: list[OperationStatus]
    idle: IdleGuards
    oversize: list[Topic]
    outboxes: OutboxesInNeed
    statuses: list[ComponentStatus]
    nightly_report: NightlyReport
    open: int | TooSlow
    last_failed_at: datetime | None

    @property
    def has_sample(self) -> bool:
        return any(row.is_sample for row in self.topics)

    @property
    def is_new_here(self) -> bool:
        """Tell whether the installation has no topic and never had a message."""
        return not (self.topics or self.needs.rows or self.last_failed_at)

    @property
    def topics_peak(self) -> int:
        """Return the listed topics' most failures in an hour, their scale."""
        return peak(self.topics)


def find(since: datetime | None, principal: Principal, *, now: datetime) -> Overview:
    """Load the overview; `since` is when the person's previous visit ended."""
    ranking = rank_problems(principal)
    needy = _needy_problems(ranking, principal)
    failing = [problem.topic_id for problem in needy]
    listed, more = topics.worst(
        principal,
        first=failing if isinstance(ranking, TooSlow) else ranking.topics,
        most=MOST_TOPICS,
    )
    hours = _hours(needy, listed, now=now)
    rows = problems.rows_with(hours, needy, now=now)
    visible = Topic.objects.matching(principal.topics)
    report, system = health.nightly_report(now=now), health.check(principal, now=now)
    guards = consumer_guard_states.statuses(visible, now=now)
    outboxes = outboxes_in_need.find(principal, now=now)
    running = triage_operations.running(principal)
    return Overview(
        alarms=[
            *system.alarms,
            *outboxes.alarms,
            *health.nightly_report_alarms(report),
        ],
        needs=needs(ranking, rows, since or now - DAY, principal, now=now),
        topics=topics.worst_first(hours, listed, now=now),
        more_topics=more,
        running=running,
        operations=triage_operations.latest(running, principal, most=MOST_OPERATIONS),
        idle=_idle_guards(visible, guards, now=now),
        oversize=oversize(visible),
        outboxes=outboxes,
        statuses=[*system.statuses, *outboxes.statuses, *guards],
        nightly_report=report,
        open=ranking if isinstance(ranking, TooSlow) else ranking.open,
        last_failed_at=None if rows else last_failed_at(principal),
    )


def _hours(
    needy: Sequence[Problem], listed: Sequence[Topic], *, now: datetime
) -> FailureHours | TooSlow:
    """Count the failures of listed problems and topics by hour, or return TooSlow."""
    return unless_slow(
        partial(
            failure_hours.count,
            problems=[problem.pk for problem in needy],
            topics=[topic.pk for topic in listed],
            now=now,
        )
    )


def _idle_guards(
    visible: TopicQuerySet, guards: Sequence[ComponentStatus], *, now: datetime
) -> IdleGuards:
    """List the consumer guards that take no message; none unless a guard is paused."""
    if any(status.state == "paused" for status in guards):
        return consumer_guard_states.idle(visible, now=now)
    return IdleGuards(guards=[], number=0)


def oversize(visible: TopicQuerySet) -> list[Topic]:
    """List topics with oversize messages, with their `number`, the most first."""
    if not OversizeMessage.objects.exists():  # nearly always, and quick to tell
        return []
    there = visible.filter(oversize__isnull=False)
    return list(
        there.annotate(number=Count("oversize")).order_by("-number", "name")[
            :MOST_TOPICS
        ]
    )


def needs(
    ranking: Ranking | TooSlow,
    rows: list[ProblemRow],
    since: datetime,
    principal: Principal,
    *,
    now: datetime,
) -> Needs:
    """Build the overview's list of problems that need a person.

    It has their rows, and counts the other ranked problems and those new since a time.
    """
    since = max(since, now - LONGEST)
    number = 0 if isinstance(ranking, TooSlow) else len(ranking.problems)
    return Needs(
        rows=rows,
        others=max(number - len(rows), 0),
        is_ranked=not isinstance(ranking, TooSlow),
        is_whole=not isinstance(ranking, TooSlow) and ranking.is_whole,
        ranked=MOST_PROBLEMS,
        new=bounded_count(_new_problems(since, principal)),
        since=since,
    )


def _needy_problems(ranking: Ranking | TooSlow, principal: Principal) -> list[Problem]:
    """Return the first problems with open messages, the most open messages first.

    Where the ranking took too long: those that failed last.
    """
    if isinstance(ranking, TooSlow):
        return _failed_last(principal)
    return _in_order(ranking.ids[:MOST_SHOWN])


def _in_order(ids: Sequence[int]) -> list[Problem]:
    """Load problems by ids, in the order in which the ids are passed."""
    by_id = Problem.objects.select_related("topic").in_bulk(ids)
    return [by_id[pk] for pk in ids]


def _failed_last(principal: Principal) -> list[Problem]:
    """List the problems with open messages that failed last.

    They stand in where the ranking took too long.
    """
    with_open = matching(OPEN, topics=principal.topics)
    return list(with_open.recent_first().select_related("topic")[:MOST_SHOWN])


def _new_problems(since: datetime, principal: Principal) -> ProblemQuerySet:
    """Return the problems with open messages that first failed since a time."""
    # `last_seen` is redundant here, but it has an index.
    with_open = matching(OPEN, topics=principal.topics)
    return with_open.filter(last_seen__gt=since, first_seen__gt=since)
