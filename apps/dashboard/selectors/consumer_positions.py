"""The data of the position pages: positions of consumers, and lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from itertools import pairwise

from django.db import connection
from django.db.models import Max, Prefetch, QuerySet

from apps.audit.models import Entry
from apps.bookmarks.consumer_request_parsing import MOST_RUNS
from apps.bookmarks.models import BookmarkPosition, Mark, Move, Sample
from apps.bookmarks.position_keepers import PositionSource
from apps.bookmarks.services import topic_head_lookup
from apps.bookmarks.services.topic_head_lookup import TopicPublisher
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.models import LANE_LIVES, Lane, LaneState
from apps.core.errors import Absent, Refused, Unavailable
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.dashboard.presentation import settled_ranges_and_holes_drawing
from apps.dashboard.presentation.settled_ranges_and_holes_drawing import PositionLine
from apps.team.rights import Principal, Scope
from apps.triage.services import position_moves
from apps.triage.services.position_moves import LocatedPoison, LocatedPoisons

# Consumers report a minute once it is over: the rate is that of the ten before.
PACE_MINUTES = 10
FORESEEABLE = timedelta(days=365)
HOURS = 24
HOUR = timedelta(hours=1)
MOST_MOVES = 50
MOST_POISONS = 50
MOST_ENTRIES = 20

# Topic and consumer: the group where the broker keeps the position, else the client.
Reader = tuple[int, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionRow:
    """A position and one publisher's mark; without a mark nothing is settled yet.

    `per_minute` is the rate of messages, None where they are not counted. `last_move`
    is the last move by a person.
    """

    position: BookmarkPosition
    mark: Mark | None
    head: int | None
    is_fresh: bool
    per_minute: float | TooSlow | None = None
    last_move: datetime | None = None

    @property
    def state(self) -> str:
        """Say how far a consumer's position is behind its topic's head.

        It is "never", "unknown", "behind", "current" or "unread" (no consumer reads).
        """
        if self.mark is None or self.mark.processed < 0:
            return "never"
        if self.position.source == PositionSource.BROKER:
            if self.mark.lag is None or not self.is_fresh:
                return "unknown"
            if self.mark.lag or self.mark.pending:
                return "behind"
            # Nothing waits; but without a consumer the state is not "caught up".
            return "current" if self.position.clients else "unread"
        return "current" if self.mark.processed >= self._reach else "behind"

    @property
    def _reach(self) -> int:
        """Return the higher of a topic's head and a position's last received number."""
        received = self.mark.received if self.mark else None
        return max(self.head or 0, received or 0)

    @property
    def behind(self) -> timedelta | None:
        """Return the time from a position's watermark to the topic's head, or None.

        None where nothing is settled, the head is unknown, or the broker's client is
        missing.
        """
        if self.mark is None or self.head is None or self.mark.processed < 0:
            return None
        try:
            topic = self.position.topic
            return brokers.time_between(topic, self.mark.processed, self.head)
        except Unavailable:
            return None  # the client of its broker is missing

    @property
    def eta(self) -> timedelta | TooSlow | None:
        """Estimate the time until a position has caught up, without new messages.

        None if nothing waits, the rate is unknown, or it would be a year or more;
        TooSlow if Postgres took too long to read the rate.
        """
        lag = self.mark and self.mark.lag
        if not lag or not self.per_minute:
            return None
        if isinstance(self.per_minute, TooSlow):
            return self.per_minute
        wait = timedelta(minutes=lag / self.per_minute)
        return wait if wait < FORESEEABLE else None

    @property
    def pressure(self) -> float:
        """Return the settled runs ahead of a position, as a share of the most."""
        return len(self.mark.ahead) / MOST_RUNS if self.mark else 0

    @property
    def settled_or_observed_at(self) -> datetime:
        """Return when a position's consumer settled last, else when it was observed."""
        settled_at = self.mark and self.mark.settled_at
        return settled_at or self.position.observed_at


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneRow:
    lane: Lane
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionList:
    rows: list[PositionRow]
    lanes: list[LaneRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublisherDetail:
    """One publisher's mark on the page of a position, with a drawing and a history.

    `hours` says how far the watermark advanced in each hour.
    """

    row: PositionRow
    mark: Mark
    line: PositionLine
    hours: list[int]
    poisons: Sequence[LocatedPoison]

    @property
    def has_history(self) -> bool:
        """Tell whether a publisher's watermark advanced in any of the hours shown."""
        return any(self.hours)

    @property
    def peak(self) -> int:
        return max(self.hours)


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionPage:
    """A position for its page; `entries` is None if the user may not read them."""

    position: BookmarkPosition
    publishers: list[PublisherDetail]
    moves: list[Move]
    poisons: Sequence[LocatedPoison]
    poison_number: int
    whole: bool
    entries: list[Entry] | None

    @property
    def settles_at_poisonweb(self) -> bool:
        """Tell whether the consumer settles at Poisonweb, not at its broker."""
        return self.position.source == PositionSource.SDK


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveChoices:
    """The choices of a move: marks to set numbers for, and positions to copy."""

    position: BookmarkPosition
    marks: dict[int, Mark]
    others: list[BookmarkPosition]


def find(principal: Principal, *, now: datetime) -> PositionList:
    """List the positions and lanes that a principal sees."""
    positions = _visible_positions(principal).order_by(
        "topic__name", "consumer_group", "client_name", "sub_id"
    )
    lanes = Lane.objects.possible().prefetch_related("topic__held")
    return PositionList(
        rows=_rows(_each_mark(positions), now=now),
        lanes=[
            LaneRow(lane=lane, state=lane_state(lane, now=now))
            for lane in lanes.order_by("topic__name")
            if principal.sees(lane.topic.name)
        ],
    )


def rows(marks: QuerySet[Mark], *, now: datetime) -> list[PositionRow]:
    """Return a row for each mark, a publisher's place in a consumer's position."""
    marks_with_topics = marks.select_related("position__topic__broker")
    return _rows([(mark.position, mark) for mark in marks_with_topics], now=now)


def one(position_id: int, principal: Principal, *, now: datetime) -> PositionPage:
    """Load a position for its page; raises Absent if this principal may not see it."""
    position = _visible_position(position_id, principal)
    position_rows = _rows(_each_mark([position]), now=now)
    placed = _open_poisons(position, principal)
    publishers = [
        _publisher(row, row.mark, placed, now=now) for row in position_rows if row.mark
    ]
    history = Move.objects.filter(position=position).prefetch_related("marks")
    poisons = [poison for each in publishers for poison in each.poisons]
    return PositionPage(
        position=position,
        publishers=publishers,
        moves=list(history.order_by("-epoch")[:MOST_MOVES]),
        poisons=poisons[:MOST_POISONS],
        poison_number=len(poisons),
        whole=placed.whole,
        entries=_entries(position, principal),
    )


def choices(position_id: int, principal: Principal) -> MoveChoices:
    """Return the marks of a position to move, and the positions it could copy.

    Raises Absent if the position is not visible, and Refused if its broker keeps it.
    """
    position = _visible_position(position_id, principal)
    if position.source == PositionSource.BROKER:
        raise Refused("Its broker keeps this position: move it there.")
    others = (
        _visible_positions(principal)
        .filter(topic=position.topic)
        .exclude(pk=position.pk)
    )
    marks = Mark.objects.filter(position=position).order_by("publisher")
    return MoveChoices(
        position=position,
        marks={mark.pk: mark for mark in marks},
        others=list(others.order_by("source", "consumer_group", "client_name")),
    )


def lane_state(lane: Lane, *, now: datetime) -> str:
    """Return the state of a lane; "silent" once its heartbeat is overdue."""
    if lane.state != LaneState.OFF and not lane.is_heard(now):
        return "silent"
    return lane.state


def _visible_positions(principal: Principal) -> QuerySet[BookmarkPosition]:
    """Return the positions that this principal sees, with their marks."""
    positions = BookmarkPosition.objects.on_topics(principal.topics)
    marks = Prefetch("marks", Mark.objects.order_by("publisher"))
    return positions.select_related("topic__broker").prefetch_related(marks)


def _visible_position(position_id: int, principal: Principal) -> BookmarkPosition:
    """Load a position; raises Absent if this principal may not see it."""
    position = _visible_positions(principal).filter(pk=position_id).first()
    if position is None:
        raise Absent(f"There is no position {position_id} here.")
    return position


def _each_mark(
    positions: Iterable[BookmarkPosition],
) -> list[tuple[BookmarkPosition, Mark | None]]:
    """Pair each position with its marks; one without marks is paired with None."""
    pairs: list[tuple[BookmarkPosition, Mark | None]] = []
    for position in positions:
        pairs += [(position, mark) for mark in position.marks.all() or [None]]
    return pairs


def _rows(
    pairs: Sequence[tuple[BookmarkPosition, Mark | None]], *, now: datetime
) -> list[PositionRow]:
    """Build a row for each mark of positions: head, pace and last move beside it."""
    topics = {position.topic_id for position, _ in pairs}
    heads = topic_head_lookup.heads(topics=topics)
    paces = unless_slow(partial(_paces, topics, now=now))
    last_moves = _last_moves({position.pk for position, _ in pairs})
    return [
        PositionRow(
            position=position,
            mark=mark,
            head=_head(position, mark, heads),
            is_fresh=now - position.observed_at <= LANE_LIVES,
            per_minute=paces
            if isinstance(paces, TooSlow)
            else paces.get(_reader(position)),
            last_move=last_moves.get(position.pk),
        )
        for position, mark in pairs
    ]


def _head(
    position: BookmarkPosition, mark: Mark | None, heads: Mapping[TopicPublisher, int]
) -> int | None:
    """Return the head of a publisher on a topic, by its mark or as its broker says.

    None without a mark, or where the head is unknown.
    """
    if mark is None:
        return None
    if mark.head is not None:
        return mark.head
    return heads.get((position.topic_id, mark.publisher))


def _reader(position: BookmarkPosition) -> Reader:
    """Return the consumer of a position, as the key of its messages per minute."""
    if position.source == PositionSource.BROKER:
        return position.topic_id, "group", position.consumer_group
    return position.topic_id, "client", position.client_name


_COUNTED = """
SELECT topic_id, consumer_group, client_name, sum(handled + failed + skipped)::bigint
FROM capture_counter
WHERE topic_id = ANY(%(topics)s) AND minute >= %(since)s AND minute < %(until)s
  AND day >= %(day)s
GROUP BY 1, 2, 3
"""


def _paces(topics: set[int], *, now: datetime) -> dict[Reader, float]:
    """Return each consumer's messages per minute, for the pages of positions.

    A consumer is a consumer group or a client of one of these topics.
    """
    until = now.replace(second=0, microsecond=0) - timedelta(minutes=1)
    since = until - timedelta(minutes=PACE_MINUTES)
    params: dict[str, list[int] | datetime | date] = {
        "topics": list(topics),
        "since": since,
        "until": until,
        # Older partitions hold no such row: no clock is a day ahead.
        "day": (now - timedelta(days=2)).date(),
    }
    paces: dict[Reader, float] = {}
    with connection.cursor() as cursor:
        cursor.execute(_COUNTED, params)
        for topic, group, client, number in cursor.fetchall():
            for reader in ((topic, "group", group), (topic, "client", client)):
                paces[reader] = paces.get(reader, 0) + number / PACE_MINUTES
    return paces


def _last_moves(positions: set[int]) -> dict[int, datetime]:
    """Map positions to the time of their last move."""
    moves_of = Move.objects.filter(position__in=positions).order_by()
    return dict(moves_of.values_list("position").annotate(at=Max("at")))


def _open_poisons(position: BookmarkPosition, principal: Principal) -> LocatedPoisons:
    """Locate the open poisons of a position's topic; [] without the right."""
    if not principal.may(Scope.POISONS_READ):
        return LocatedPoisons(poisons=(), whole=True)
    return position_moves.locate_poisons(topic_id=position.topic_id)


def _publisher(
    row: PositionRow, mark: Mark, placed: LocatedPoisons, *, now: datetime
) -> PublisherDetail:
    """Load what a position's page shows of one publisher."""
    own = [p for p in placed.poisons if p.place.publisher == mark.publisher]
    return PublisherDetail(
        row=row,
        mark=mark,
        line=settled_ranges_and_holes_drawing.draw(mark, head=row.head, poisons=own),
        hours=_hours(mark, now=now),
        poisons=own,
    )


def _hours(mark: Mark, *, now: datetime) -> list[int]:
    """Return by how many numbers a mark's watermark advanced in each of 24 hours.

    The last hour is the newest.
    """
    samples = Sample.objects.filter(mark=mark, at__gt=now - (HOURS + 1) * HOUR)
    readings = [*samples.order_by("at").values_list("at", "processed")]
    readings.append((now, mark.processed))
    hours = [0] * HOURS
    for (_, before), (at, after) in pairwise(readings):
        age = int((now - at) / HOUR)
        if age < HOURS and after > before >= 0:
            hours[HOURS - 1 - age] += after - before
    return hours


def _entries(position: BookmarkPosition, principal: Principal) -> list[Entry] | None:
    """List the audit entries of a position; None without the right."""
    if not principal.may(Scope.AUDIT_READ):
        return None
    entries = Entry.objects.filter(subject=f"position:{position.pk}")
    return list(entries.order_by("-seq")[:MOST_ENTRIES])
