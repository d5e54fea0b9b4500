"""The data of the topic pages: traffic, failures, backlog, lag and lanes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import partial
from typing import Self

from django.db import connection
from django.db.models.expressions import RawSQL

from apps.bookmarks.models import Mark
from apps.brokers import topic_policies
from apps.brokers.models import Topic
from apps.brokers.queue_ownership import reader_of_queue
from apps.brokers.services.topics_and_routing_publisher import (
    Convention,
    convention_of_topic,
)
from apps.brokers.topic_querysets import TopicQuerySet
from apps.capture.models import (
    LANE_LIVES,
    HeldDeadLetter,
    Lane,
    LaneState,
    OversizeMessage,
    Sample,
)
from apps.core.errors import Absent
from apps.core.statement_timeouts import TOO_SLOW, TooSlow, unless_slow
from apps.core.wildcard_patterns import like
from apps.dashboard.keyset_pagination import PAGE_SIZE
from apps.dashboard.selectors import (
    consumer_guard_states,
    consumer_positions,
    skips,
)
from apps.dashboard.selectors.consumer_guard_states import GuardList, IdleGuards
from apps.dashboard.selectors.consumer_positions import PositionRow
from apps.poison import failure_hours
from apps.poison.failure_hours import FailureHours
from apps.poison.models import SkipList
from apps.poison.poison_counts_by_state import by_topic, open_by_topic
from apps.poison.states import DisplayState
from apps.team.rights import Principal

HOURS = 24
DAY = timedelta(hours=HOURS)
# Consumers report a minute once it is over: the rate is that of the ten before.
LATE = timedelta(minutes=1)
PACE_MINUTES = 10
MOST_HELD = 50
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
        """Return the share of a topic's deliveries of 24 hours that failed.

        None where failures are not counted, or nothing was delivered.
        """
        if self.failed is None or not self.delivered:
            return None
        return self.failed / self.delivered

    @property
    def why_no_share(self) -> str:
        """Say why a topic has no share of failures; "" if it has one."""
        if self.source == "none":
            return "no share: deliveries are not counted"
        if self.source == "broker":
            return "no share: its broker counts deliveries, not failures"
        return "" if self.delivered else "no share: nothing was delivered"

    @property
    def per_minute(self) -> float | None:
        """Return a topic's recent deliveries a minute; None if they are not counted."""
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

    open: int
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
        """Return the depth of a topic's dead-letter queue; None if out of date."""
        return self.lane.depth if self.lane and self.lane_state in COUNTS else None

    @property
    def has_lane_trouble(self) -> bool:
        """Tell whether the topic's lane has trouble, though it is not paused."""
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
    counts: dict[DisplayState, int | TooSlow]
    given_back: int | TooSlow
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
        """Keep the topics whose name contains the text and sorts after another.

        The filter has both: the text, and the name after which the page begins.
        """
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
    principal: Principal, *, first: Sequence[int], most: int
) -> tuple[list[Topic], bool]:
    """List the worst visible topics, and tell whether there are more.

    `first` are the ids of the worst, in this order; then come others by name.
    """
    is_first = RawSQL("brokers_topic.id = ANY(%s::bigint[])", [list(first[:most])])
    ordered = _visible_topics(principal).order_by(is_first.desc(), "name")
    topics = list(ordered[: most + 1])
    return topics[:most], len(topics) > most


def worst_first(
    hours: FailureHours | TooSlow, topics: Sequence[Topic], *, now: datetime
) -> list[TopicRow]:
    """Build the rows of topics, the worst first."""
    return sorted(_rows_with(hours, topics, now=now), key=_severity, reverse=True)


def _severity(row: TopicRow) -> tuple[int, float, int]:
    """Return a topic's sort key: open messages, then failure rate, then failures."""
    # A count that took too long is probably large.
    backlog = row.backlog
    number = sys.maxsize if isinstance(backlog, TooSlow) else backlog.open
    share = None if isinstance(row.traffic, TooSlow) else row.traffic.share
    failed = 0 if isinstance(row.failures, TooSlow) else row.failures.number
    return number, share or 0.0, failed


def peak(rows: Sequence[TopicRow]) -> int:
    """Return these topics' most failures in an hour, their common scale."""
    failures = (row.failures for row in rows)
    return max((f.peak for f in failures if not isinstance(f, TooSlow)), default=0)


def one(topic_id: int, principal: Principal, *, now: datetime) -> TopicPage:
    """Load a topic for its page; raises Absent if this principal may not see it."""
    topic = visible(topic_id, principal)
    marks = Mark.objects.filter(position__topic=topic)
    held_letters = HeldDeadLetter.objects.filter(topic=topic)
    oversize = OversizeMessage.objects.filter(topic=topic)
    counts = unless_slow(lambda: by_topic([topic_id])[topic_id])
    return TopicPage(
        row=_rows([topic], now=now)[0],
        limits=topic_policies.limits_of(topic),
        convention=convention_of_topic(topic),
        counts={
            state: TOO_SLOW if isinstance(counts, TooSlow) else counts.states[state]
            for state in DisplayState
        },
        given_back=TOO_SLOW if isinstance(counts, TooSlow) else counts.given_back,
        positions=consumer_positions.rows(
            marks.order_by("position__consumer_group", "publisher"), now=now
        ),
        guards=consumer_guard_states.of_topic(topic, now=now),
        idle=consumer_guard_states.idle(Topic.objects.filter(pk=topic_id), now=now),
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
    return Topic.objects.matching(principal.topics).select_related(
        "broker", "lane", "outbox__broker"
    )


def _other_reader(topic: Topic) -> Topic | None:
    """Return the other topic that reads this topic's dead-letter queue, or None."""
    if topic.broker is None or not topic.shares_queue:
        return None
    return reader_of_queue(
        broker=topic.broker, queue=topic.dead_letter_queue, besides=topic.name
    )


def _rows(topics: Sequence[Topic], *, now: datetime) -> list[TopicRow]:
    """Build a row for each topic: traffic, failures, open messages, lag and lane."""
    ids = [topic.pk for topic in topics]
    # Counted as on a problem's page, so that the problems add up to the topic.
    hours = unless_slow(partial(failure_hours.count, topics=ids, now=now))
    return _rows_with(hours, topics, now=now)


def _rows_with(
    hours: FailureHours | TooSlow, topics: Sequence[Topic], *, now: datetime
) -> list[TopicRow]:
    """Build a list row for each topic, from failures by hour counted before."""
    ids = [topic.pk for topic in topics]
    traffic = unless_slow(partial(_traffic, ids, now=now))
    backlogs = unless_slow(partial(_backlogs, ids))
    lags = _lags(ids, now=now)
    return [
        TopicRow(
            topic=topic,
            traffic=traffic if isinstance(traffic, TooSlow) else traffic[topic.pk],
            failures=hours
            if isinstance(hours, TooSlow)
            else HourlyFailures(hours=hours.by_topic[topic.pk]),
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
    return consumer_positions.lane_state(topic.lane, now=now)


_COUNTED = """
SELECT topic_id, source, sum(handled)::bigint, sum(failed)::bigint,
       sum((handled + failed) * (minute >= %(lately)s AND minute < %(late)s)::int
       )::bigint
FROM capture_counter
WHERE topic_id = ANY(%(ids)s) AND minute > %(since)s AND minute <= %(now)s
  AND day >= %(day)s
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
    def of_last_day(cls, ids: list[int], *, now: datetime) -> list[Self]:
        """Count the last 24 hours' deliveries and failures, for the topic pages.

        SQL does so, by topic and by source: who counted them.
        """
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
    """Map each topic's id to its deliveries and failures, for the topic pages.

    They are those of 24 hours that the SDK counted, or else the broker.
    """
    traffic = {pk: Traffic() for pk in ids}
    counts = _SourceCount.of_last_day(ids, now=now)
    by_sdk = {each.topic for each in counts if each.source == "sdk"}
    for each in counts:
        if each.source == "sdk" or each.topic not in by_sdk:
            _add(traffic[each.topic], each)
    return traffic


def _add(traffic: Traffic, count: _SourceCount) -> None:
    """Add the deliveries that one source counted to a topic's traffic.

    Failures are added only where the source is the SDK: brokers count none.
    """
    traffic.source = count.source
    traffic.delivered = (traffic.delivered or 0) + count.handled + count.failed
    traffic.lately += count.lately
    if count.source == "sdk":
        traffic.failed = (traffic.failed or 0) + count.failed


def _backlogs(ids: list[int]) -> dict[int, ListedBacklog]:
    """Map each topic's id to the number of its open messages, and age of the oldest."""
    there = open_by_topic(ids)
    return {
        topic: ListedBacklog(open=number, oldest=oldest)
        for topic in ids
        for number, oldest in [there.get(topic, (0, None))]
    }


_LAGS = """
SELECT position.topic_id, sum(mark.lag)::bigint
FROM bookmarks_mark mark
JOIN bookmarks_position position ON position.id = mark.position_id
WHERE position.topic_id = ANY(%(ids)s::bigint[]) AND position.observed_at >= %(since)s
GROUP BY 1 HAVING sum(mark.lag) IS NOT NULL
"""


def _lags(ids: list[int], *, now: datetime) -> dict[int, int]:
    """Map each topic's id to the summed lag of its consumer groups.

    A topic is missing where no lag was lately observed.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LAGS, {"ids": ids, "since": now - LANE_LIVES})
        return dict(cursor.fetchall())
