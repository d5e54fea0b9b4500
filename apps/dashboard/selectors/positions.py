"""How far consumers have read, and what the lanes say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from itertools import pairwise

from django.db import connection
from django.db.models import Max, Prefetch, QuerySet

from apps.audit.models import Entry
from apps.bookmarks.models import BookmarkPosition, Mark, Move, Sample
from apps.bookmarks.services import reading
from apps.bookmarks.services.reading import Line as TopicLine
from apps.bookmarks.states import Source
from apps.bookmarks.wire import MOST_RUNS
from apps.brokers.services import topics as brokers
from apps.capture.models import LANE_LIVES, Lane, LaneState
from apps.core.errors import Absent, Refused, Unavailable
from apps.core.timeouts import TooSlow, unless_slow
from apps.dashboard.presentation import position_line
from apps.dashboard.presentation.position_line import Line
from apps.team.rights import Principal, Scope
from apps.triage.services import moves
from apps.triage.services.moves import LocatedPoison, LocatedPoisons

# Consumers tell of a minute when it is over, so the pace is that of the ten before.
PACE_MINUTES = 10
FORESEEABLE = timedelta(days=365)
HOURS = 24
HOUR = timedelta(hours=1)
MOST_MOVES = 50
MOST_POISONS = 50
MOST_ENTRIES = 20

# A topic and a consumer: its group where a broker keeps its position, else its client.
Reader = tuple[int, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionRow:
    """A reader and one publisher; without a mark it has not settled anything yet.

    `a_minute` is how many messages it gets through, None where nobody counts them.
    `last_move` is a person's.
    """

    position: BookmarkPosition
    mark: Mark | None
    head: int | None
    is_fresh: bool
    a_minute: float | TooSlow | None = None
    last_move: datetime | None = None

    @property
    def state(self) -> str:
        if self.mark is None or self.mark.processed < 0:
            return "never"
        if self.position.source == Source.BROKER:
            if self.mark.lag is None or not self.is_fresh:
                return "unknown"
            if self.mark.lag or self.mark.pending:
                return "behind"
            # Nothing waits; but where nobody reads, nobody has caught up either.
            return "current" if self.position.clients else "unread"
        return "current" if self.mark.processed >= self._reach else "behind"

    @property
    def _reach(self) -> int:
        """Give the furthest number that it has to come to."""
        received = self.mark.received if self.mark else None
        return max(self.head or 0, received or 0)

    @property
    def behind(self) -> timedelta | None:
        """Give the time between the watermark and the head, where numbers tell time."""
        if self.mark is None or self.head is None or self.mark.processed < 0:
            return None
        try:
            topic = self.position.topic
            return brokers.time_between(topic, self.mark.processed, self.head)
        except Unavailable:
            return None  # the client of its broker is missing: nobody knows its numbers

    @property
    def eta(self) -> timedelta | TooSlow | None:
        """Give the time until it has caught up, if nothing new came."""
        lag = self.mark and self.mark.lag
        if not lag or not self.a_minute:
            return None
        if isinstance(self.a_minute, TooSlow):
            return self.a_minute
        wait = timedelta(minutes=lag / self.a_minute)
        return wait if wait < FORESEEABLE else None

    @property
    def pressure(self) -> float:
        """Tell how much of what a position can hold is holes."""
        return len(self.mark.ahead) / MOST_RUNS if self.mark else 0

    @property
    def seen_at(self) -> datetime:
        settled_at = self.mark and self.mark.settled_at
        return settled_at or self.position.observed_at


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneRow:
    lane: Lane
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Positions:
    rows: list[PositionRow]
    lanes: list[LaneRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublisherSeen:
    """One publisher's mark on a position's own page, drawn, with its last day.

    `hours` are the numbers by which the watermark got ahead, hour by hour.
    """

    row: PositionRow
    mark: Mark
    line: Line
    hours: list[int]
    poisons: Sequence[LocatedPoison]

    @property
    def has_history(self) -> bool:
        return any(self.hours)

    @property
    def peak(self) -> int:
        return max(self.hours)


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionDetail:
    """`entries` is None for who may not read the trail."""

    position: BookmarkPosition
    publishers: list[PublisherSeen]
    moves: list[Move]
    poisons: Sequence[LocatedPoison]
    poison_number: int
    whole: bool
    entries: list[Entry] | None

    @property
    def is_kept_here(self) -> bool:
        return self.position.source == Source.SDK


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveChoices:
    """What the wizard offers: marks to name numbers for, and consumers to copy."""

    position: BookmarkPosition
    marks: dict[int, Mark]
    others: list[BookmarkPosition]


def find(principal: Principal, *, now: datetime) -> Positions:
    positions = _visible(principal).order_by(
        "topic__name", "consumer_group", "client_name", "sub_id"
    )
    lanes = Lane.objects.possible().prefetch_related("topic__held")
    return Positions(
        rows=_rows(_each_mark(positions), now=now),
        lanes=[
            LaneRow(lane=lane, state=lane_state(lane, now=now))
            for lane in lanes.order_by("topic__name")
            if principal.sees(lane.topic.name)
        ],
    )


def rows(marks: QuerySet[Mark], *, now: datetime) -> list[PositionRow]:
    """Tell of each mark whether it is what its broker says by now."""
    told = marks.select_related("position__topic__broker")
    return _rows([(mark.position, mark) for mark in told], now=now)


def one(position_id: int, principal: Principal, *, now: datetime) -> PositionDetail:
    """Find a position that this principal may see; raises Absent otherwise."""
    position = _found(position_id, principal)
    told = _rows(_each_mark([position]), now=now)
    placed = _placed(position, principal)
    publishers = [
        _publisher(row, row.mark, placed, now=now) for row in told if row.mark
    ]
    history = Move.objects.filter(position=position).prefetch_related("marks")
    poisons = [poison for each in publishers for poison in each.poisons]
    return PositionDetail(
        position=position,
        publishers=publishers,
        moves=list(history.order_by("-epoch")[:MOST_MOVES]),
        poisons=poisons[:MOST_POISONS],
        poison_number=len(poisons),
        whole=placed.whole,
        entries=_entries(position, principal),
    )


def choices(position_id: int, principal: Principal) -> MoveChoices:
    """Give what a move of this position can name.

    Raises Absent where it is not seen, and Refused where its broker keeps it.
    """
    position = _found(position_id, principal)
    if position.source == Source.BROKER:
        raise Refused("Its broker keeps this position: move it there.")
    others = _visible(principal).filter(topic=position.topic).exclude(pk=position.pk)
    marks = Mark.objects.filter(position=position).order_by("publisher")
    return MoveChoices(
        position=position,
        marks={mark.pk: mark for mark in marks},
        others=list(others.order_by("source", "consumer_group", "client_name")),
    )


def lane_state(lane: Lane, *, now: datetime) -> str:
    """Say how a lane is, in a word; silent once it stopped telling."""
    if lane.state != LaneState.OFF and not lane.is_heard(now):
        return "silent"
    return lane.state


def _visible(principal: Principal) -> QuerySet[BookmarkPosition]:
    seen = BookmarkPosition.objects.on_topics(principal.topics)
    marks = Prefetch("marks", Mark.objects.order_by("publisher"))
    return seen.select_related("topic__broker").prefetch_related(marks)


def _found(position_id: int, principal: Principal) -> BookmarkPosition:
    position = _visible(principal).filter(pk=position_id).first()
    if position is None:
        raise Absent(f"There is no position {position_id} here.")
    return position


def _each_mark(
    positions: Iterable[BookmarkPosition],
) -> list[tuple[BookmarkPosition, Mark | None]]:
    """Pair each position with its marks; one without any is there all the same."""
    pairs: list[tuple[BookmarkPosition, Mark | None]] = []
    for position in positions:
        pairs += [(position, mark) for mark in position.marks.all() or [None]]
    return pairs


def _rows(
    pairs: Sequence[tuple[BookmarkPosition, Mark | None]], *, now: datetime
) -> list[PositionRow]:
    topics = {position.topic_id for position, _ in pairs}
    heads = reading.heads(topics=topics)
    paces = unless_slow(partial(_paces, topics, now=now))
    moved = _last_moves({position.pk for position, _ in pairs})
    return [
        PositionRow(
            position=position,
            mark=mark,
            head=_head(position, mark, heads),
            is_fresh=now - position.observed_at <= LANE_LIVES,
            a_minute=paces
            if isinstance(paces, TooSlow)
            else paces.get(_reader(position)),
            last_move=moved.get(position.pk),
        )
        for position, mark in pairs
    ]


def _head(
    position: BookmarkPosition, mark: Mark | None, heads: Mapping[TopicLine, int]
) -> int | None:
    if mark is None:
        return None
    if mark.head is not None:
        return mark.head
    return heads.get((position.topic_id, mark.publisher))


def _reader(position: BookmarkPosition) -> Reader:
    if position.source == Source.BROKER:
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
    """Give the messages a minute of each consumer group, and of each client."""
    until = now.replace(second=0, microsecond=0) - timedelta(minutes=1)
    since = until - timedelta(minutes=PACE_MINUTES)
    asked: dict[str, list[int] | datetime | date] = {
        "topics": list(topics),
        "since": since,
        "until": until,
        # Older partitions cannot hold any of it: no clock is a day ahead.
        "day": (now - timedelta(days=2)).date(),
    }
    paces: dict[Reader, float] = {}
    with connection.cursor() as cursor:
        cursor.execute(_COUNTED, asked)
        for topic, group, client, number in cursor.fetchall():
            for reader in ((topic, "group", group), (topic, "client", client)):
                paces[reader] = paces.get(reader, 0) + number / PACE_MINUTES
    return paces


def _last_moves(positions: set[int]) -> dict[int, datetime]:
    told = Move.objects.filter(position__in=positions).order_by()
    return dict(told.values_list("position").annotate(at=Max("at")))


def _placed(position: BookmarkPosition, principal: Principal) -> LocatedPoisons:
    if not principal.may(Scope.POISONS_READ):
        return LocatedPoisons(poisons=(), whole=True)
    return moves.locate_poisons(topic_id=position.topic_id)


def _publisher(
    row: PositionRow, mark: Mark, placed: LocatedPoisons, *, now: datetime
) -> PublisherSeen:
    own = [p for p in placed.poisons if p.place.publisher == mark.publisher]
    return PublisherSeen(
        row=row,
        mark=mark,
        line=position_line.draw(mark, head=row.head, poisons=own),
        hours=_hours(mark, now=now),
        poisons=own,
    )


def _hours(mark: Mark, *, now: datetime) -> list[int]:
    """Give how far the watermark got in each of the last hours, the newest last."""
    samples = Sample.objects.filter(mark=mark, at__gt=now - (HOURS + 1) * HOUR)
    told = [*samples.order_by("at").values_list("at", "processed")]
    told.append((now, mark.processed))
    hours = [0] * HOURS
    for (_, before), (at, after) in pairwise(told):
        age = int((now - at) / HOUR)
        if age < HOURS and after > before >= 0:
            hours[HOURS - 1 - age] += after - before
    return hours


def _entries(position: BookmarkPosition, principal: Principal) -> list[Entry] | None:
    if not principal.may(Scope.AUDIT_READ):
        return None
    entries = Entry.objects.filter(subject=f"position:{position.pk}")
    return list(entries.order_by("-seq")[:MOST_ENTRIES])
