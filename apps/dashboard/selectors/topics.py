"""The data of the topic pages: traffic, failures, backlog, lag and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import partial
from typing import Self

from django.db import connection
from django.db.models import Sum

from apps.bookmarks.models import Mark
from apps.brokers import topic_policies
from apps.brokers.models import Topic
from apps.brokers.querysets import TopicQuerySet
from apps.brokers.queue_ownership import reader_of_queue
from apps.brokers.services.topics import Convention, convention_of_topic
from apps.capture.models import (
    LANE_LIVES,
    HeldDeadLetter,
    Lane,
    LaneState,
    OversizeMessage,
    Sample,
)
from apps.core.errors import Absent
from apps.core.patterns import like
from apps.core.timeouts import TooSlow, unless_slow
from apps.dashboard.paging import MOST_COUNTED, PAGE_SIZE, BoundedCount, bounded_count
from apps.dashboard.selectors import guards, positions, skips
from apps.dashboard.selectors.guards import GuardList, IdleGuards
from apps.dashboard.selectors.positions import PositionRow
from apps.poison.backlogs import backlogs
from apps.poison.models import Poison, Problem, SkipList
from apps.poison.states import DisplayState, states_displayed_as
from apps.team.rights import Principal

HOURS = 24
DAY = timedelta(hours=HOURS)
# Consumers report a minute once it is over: the rate is that of the ten before.
LATE = timedelta(minutes=1)
PACE_MINUTES = 10
MOST_HELD = 50
# How many of the newest problems are searched for topics that fail now.
MOST_PROBLEMS = 500
# The states in which a lane counts its queue, and those that pages must show.
COUNTS = (LaneState.RUNNING, LaneState.HOLDING)
LANE_TROUBLE = (LaneState.AWAY, LaneState.MISSING, LaneState.HOLDING, "silent")

SqlParams = dict[str, list[int] | datetime | date]


@dataclass(kw_only=True, slots=True)
class Traffic:
    """The deliveries of a topic in the last 24 hours, as its `source` counted them.

    `source` is `sdk` for the consumers, `broker`, or `none`. Only consumers count
    failed messages: `failed` is None for any other source.
    """

    source: str = "none"
    delivered: int | None = None
    failed: int | None = None
    lately: int = 0

    @property
    def share(self) -> float | None:
        """Return failed / delivered, both from one source and the same 24 hours."""
        if self.failed is None or not self.delivered:
            return None
        return self.failed / self.delivered

    @property
    def why_no_share(self) -> str:
        """Say why there is no share of failures; "" if there is one."""
        if self.source == "none":
            return "no share: deliveries are not counted"
        if self.source == "broker":
            return "no share: its broker counts deliveries, not failures"
        return "" if self.delivered else "no share: nothing was delivered"

    @property
    def per_minute(self) -> float | None:
        """Return the deliveries a minute of late; None without a count."""
        return None if self.delivered is None else self.lately / PACE_MINUTES


@dataclass(frozen=True, kw_only=True, slots=True)
class HourlyFailures:
    """The stored failures of the last 24 hours, the oldest hour first."""

    hours: list[int] = field(default_factory=lambda: [0] * HOURS)

    @property
    def number(self) -> int:
        return sum(self.hours)

    @property
    def peak(self) -> int:
        return max(self.hours)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedBacklog:
    """The number of open messages, and when the oldest of them last failed."""

    open: BoundedCount
    oldest: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicRow:
    """A topic with its current numbers.

    `lag` is how far its consumers are behind; `dead_letters` wait at the broker.
    """

    topic: Topic
    traffic: Traffic | TooSlow
    failures: HourlyFailures | TooSlow
    backlog: ListedBacklog | TooSlow
    lag: int | None
    lane_state: str

    @property
    def lane(self) -> Lane | None:
        """Return the lane of the topic, or None."""
        return getattr(self.topic, "lane", None)

    @property
    def dead_letters(self) -> int | None:
        """Return the depth of the dead-letter queue; None if it is out of date."""
        return self.lane.depth if self.lane and self.lane_state in COUNTS else None

    @property
    def has_lane_trouble(self) -> bool:
        """Return whether its lane has trouble, though it is not paused."""
        return self.lane_state in LANE_TROUBLE

    @property
    def is_sample(self) -> bool:
        return self.topic.is_sample


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicList:
    rows: list[TopicRow]
    next: str  # the name that the next page comes after; "" on the last page

    @property
    def peak(self) -> int:
        return peak(self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicPage:
    row: TopicRow
    limits: frozenset[str]
    convention: Convention
    counts: dict[DisplayState, BoundedCount | TooSlow]
    given_back: BoundedCount | TooSlow
    positions: list[PositionRow]
    guards: GuardList
    idle: IdleGuards
    withheld: list[SkipList]
    held_letters: list[HeldDeadLetter]
    held_letters_number: int
    oversize: list[OversizeMessage]
    oversize_number: int
    samples: int
    other_reader: Topic | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicFilter:
    """A filter: topics whose name contains `name` and sorts behind `after`."""

    name: str = ""
    after: str = ""

    def of(self, topics: TopicQuerySet) -> TopicQuerySet:
        """Narrow topics to this filter."""
        if self.name:
            topics = topics.filter(name__ilike=f"%{like(self.name)}%")
        return topics.filter(name__gt=self.after)


def find(filters: TopicFilter, principal: Principal, *, now: datetime) -> TopicList:
    """List a page of the topics that match the filter and are visible."""
    topics = filters.of(_visible_topics(principal)).order_by("name")
    fetched = list(topics[: PAGE_SIZE + 1])
    page_topics = fetched[:PAGE_SIZE]
    return TopicList(
        rows=_rows(page_topics, now=now),
        next=page_topics[-1].name if len(fetched) > PAGE_SIZE else "",
    )


def worst(
    principal: Principal, *, first: Sequence[int], most: int, now: datetime
) -> tuple[list[TopicRow], bool]:
    """Return the worst topics, and whether there are more.

    `first` are those with open messages, most first; then come those that failed last.
    """
    allowed = _visible_topics(principal)
    newest = Problem.objects.filter(topic__in=allowed).recent_first()
    failed = newest.values_list("topic_id", flat=True)[:MOST_PROBLEMS]
    others = allowed.order_by("name").values_list("pk", flat=True)[: most + 1]
    chosen = list(dict.fromkeys([*first, *failed, *others]))
    topics = allowed.filter(pk__in=chosen[:most]).order_by("name")
    rows = sorted(_rows(list(topics), now=now), key=_severity, reverse=True)
    return rows, len(chosen) > most


def _severity(row: TopicRow) -> tuple[int, float, int]:
    """Order topics by their open messages now, then by their failure rate today."""
    # A count that took too long is probably large.
    backlog = row.backlog
    number = MOST_COUNTED if isinstance(backlog, TooSlow) else backlog.open.number
    share = None if isinstance(row.traffic, TooSlow) else row.traffic.share
    failed = 0 if isinstance(row.failures, TooSlow) else row.failures.number
    return number, share or 0.0, failed


def peak(rows: Sequence[TopicRow]) -> int:
    """Return the most failures in an hour, as the common scale of these rows."""
    failures = (row.failures for row in rows)
    return max((f.peak for f in failures if not isinstance(f, TooSlow)), default=0)


def one(topic_id: int, principal: Principal, *, now: datetime) -> TopicPage:
    """Load a topic for its page; raises Absent if this principal may not see it."""
    topic = visible(topic_id, principal)
    marks = Mark.objects.filter(position__topic=topic)
    held_letters = HeldDeadLetter.objects.filter(topic=topic)
    oversize = OversizeMessage.objects.filter(topic=topic)
    return TopicPage(
        row=_rows([topic], now=now)[0],
        limits=topic_policies.limits_of(topic),
        convention=convention_of_topic(topic),
        counts={state: _message_count(topic, state) for state in DisplayState},
        given_back=bounded_count(Poison.objects.filter(topic=topic).given_back()),
        positions=positions.rows(
            marks.order_by("position__consumer_group", "publisher"), now=now
        ),
        guards=guards.of_topic(topic, now=now),
        idle=guards.idle(Topic.objects.filter(pk=topic_id), now=now),
        withheld=skips.withheld(Topic.objects.filter(pk=topic_id), now=now),
        held_letters=list(held_letters.order_by("-seen_at")[:MOST_HELD]),
        held_letters_number=held_letters.count(),
        oversize=list(oversize.order_by("-seen_at")[:MOST_HELD]),
        oversize_number=oversize.count(),
        samples=Sample.objects.filter(topic=topic).count(),
        other_reader=_other_reader(topic),
    )


def visible(topic_id: int, principal: Principal) -> Topic:
    """Load a topic; raises Absent if this principal may not see it."""
    topic = _visible_topics(principal).filter(pk=topic_id).first()
    if topic is None:
        raise Absent(f"There is no topic {topic_id} here.")
    return topic


def _visible_topics(principal: Principal) -> TopicQuerySet:
    """Return the topics that this principal sees, with lanes and brokers."""
    return Topic.objects.matching(principal.topics).select_related("broker", "lane")


def _other_reader(topic: Topic) -> Topic | None:
    """Return the topic that reads this one's dead-letter queue instead, if any."""
    if topic.broker is None or not topic.shares_queue:
        return None
    return reader_of_queue(
        broker=topic.broker, queue=topic.dead_letter_queue, besides=topic.name
    )


def _message_count(topic: Topic, state: DisplayState) -> BoundedCount | TooSlow:
    """Count the messages of a topic in a state, up to a limit."""
    # Through its problems, because their index contains the state.
    return bounded_count(
        Poison.objects.filter(
            problem__topic=topic, state__in=states_displayed_as(state)
        )
    )


def _rows(topics: Sequence[Topic], *, now: datetime) -> list[TopicRow]:
    """Build a row for each topic: traffic, failures, open messages, lag and lane."""
    ids = [topic.pk for topic in topics]
    traffic = unless_slow(partial(_traffic, ids, now=now))
    failures = unless_slow(partial(_failures, ids, now=now))
    backlogs = unless_slow(partial(_backlogs, ids))
    lags = _lags(ids, now=now)
    return [
        TopicRow(
            topic=topic,
            traffic=traffic if isinstance(traffic, TooSlow) else traffic[topic.pk],
            failures=failures if isinstance(failures, TooSlow) else failures[topic.pk],
            backlog=backlogs if isinstance(backlogs, TooSlow) else backlogs[topic.pk],
            lag=lags.get(topic.pk),
            lane_state=_lane_state(topic, now=now),
        )
        for topic in topics
    ]


def _lane_state(topic: Topic, *, now: datetime) -> str:
    """Return the state of a topic's lane; "off" without one."""
    if not hasattr(topic, "lane"):
        return LaneState.OFF
    return positions.lane_state(topic.lane, now=now)


_COUNTED = """
SELECT topic_id, source, sum(handled)::bigint, sum(failed)::bigint,
       sum((handled + failed) * (minute >= %(lately)s AND minute < %(late)s)::int
       )::bigint
FROM capture_counter
WHERE topic_id = ANY(%(ids)s) AND minute > %(since)s AND minute <= %(now)s
  AND day >= %(day)s
GROUP BY 1, 2
"""
# Counted as on a problem's page, so that the problems add up to the topic. Without a
# condition on the partition the index alone answers, five times as fast.
_FAILED = """
SELECT problem.topic_id, extract(epoch FROM %(now)s - failure.failed_at)::int / 3600,
       count(*)
FROM poison_problem problem
JOIN poison_failure failure ON failure.problem_id = problem.id
WHERE problem.topic_id = ANY(%(ids)s) AND problem.last_seen > %(since)s
  AND failure.failed_at > %(since)s AND failure.failed_at <= %(now)s
GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class _SourceCount:
    """The counts of one source on one topic in 24 hours."""

    topic: int
    source: str
    handled: int
    failed: int
    lately: int

    @classmethod
    def all(cls, ids: list[int], *, now: datetime) -> list[Self]:
        """Count deliveries and failures of a day by topic and source, by SQL."""
        late = now.replace(second=0, microsecond=0) - LATE
        params: SqlParams = {
            "ids": ids,
            "now": now,
            "since": now - DAY,
            # Older partitions hold no such row: no clock is a day ahead.
            "day": (now - 2 * DAY).date(),
            "lately": late - timedelta(minutes=PACE_MINUTES),
            "late": late,
        }
        with connection.cursor() as cursor:
            cursor.execute(_COUNTED, params)
            return [cls(*row) for row in cursor.fetchall()]


def _traffic(ids: list[int], *, now: datetime) -> dict[int, Traffic]:
    """Map topics to the traffic of a day: by the SDK if it counts, else the broker."""
    traffic = {pk: Traffic() for pk in ids}
    counts = _SourceCount.all(ids, now=now)
    by_sdk = {each.topic for each in counts if each.source == "sdk"}
    for each in counts:
        if each.source == "sdk" or each.topic not in by_sdk:
            _add(traffic[each.topic], each)
    return traffic


def _add(traffic: Traffic, count: _SourceCount) -> None:
    """Add the counts of a source to a topic's traffic."""
    traffic.source = count.source
    traffic.delivered = (traffic.delivered or 0) + count.handled + count.failed
    traffic.lately += count.lately
    if count.source == "sdk":
        traffic.failed = (traffic.failed or 0) + count.failed


def _failures(ids: list[int], *, now: datetime) -> dict[int, HourlyFailures]:
    """Map topics to their failures in each of the last 24 hours."""
    failures = {pk: HourlyFailures() for pk in ids}
    with connection.cursor() as cursor:
        cursor.execute(_FAILED, {"ids": ids, "now": now, "since": now - DAY})
        for topic, age, number in cursor.fetchall():
            failures[topic].hours[HOURS - 1 - min(age, HOURS - 1)] += number
    return failures


def _backlogs(ids: list[int]) -> dict[int, ListedBacklog]:
    """Map topics to their open messages: number, and age of the oldest."""
    by_topic = backlogs(topics=ids, most=MOST_COUNTED + 1)
    return {
        topic: ListedBacklog(open=BoundedCount(backlog.open), oldest=backlog.oldest)
        for topic, backlog in by_topic.items()
    }


def _lags(ids: list[int], *, now: datetime) -> dict[int, int]:
    """Sum up the lag of the readers of each topic, where it is known."""
    recent_marks = Mark.objects.filter(
        position__topic__in=ids, position__observed_at__gte=now - LANE_LIVES
    )
    lags = (
        recent_marks.order_by().values_list("position__topic").annotate(lag=Sum("lag"))
    )
    return {topic: lag for topic, lag in lags if lag is not None}
