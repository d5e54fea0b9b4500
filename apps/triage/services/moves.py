"""A person moves a position: look at what that would do, then do exactly that.

Going back replays everything behind the target. Going forward passes over what is not
settled up to it, and what is settled beyond it stays settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import transaction
from django.db.models import BinaryField, F, Func, Value

from apps.audit import services as audit
from apps.audit.services import Action
from apps.bookmarks.models import BookmarkPosition, Mark, Move, Moved
from apps.bookmarks.places import LONGEST, BookmarkPlace, place_of
from apps.bookmarks.runs import LAST, NOWHERE, Runs, holds, up_to, watermark
from apps.bookmarks.services import history, moving
from apps.bookmarks.services.moving import Change
from apps.bookmarks.states import Source
from apps.core.errors import Absent, Invalid, Refused
from apps.core.text import storable
from apps.poison.models import Poison
from apps.team.rights import Principal, Scope

Targets = dict[str, Runs]

# A holder that settled so lately is at work: it would go on as if nothing had been.
QUIET_AFTER = timedelta(minutes=2)
REASON_LIMIT = 2000
# Bookmarks have no order in the database: so many of the newest are looked at.
MOST_LOOKED_AT = 10_000


class Strategy(StrEnum):
    START = "start"
    END = "end"
    TIME = "time"
    EXACT = "exact"
    SHIFT = "shift"
    COPY = "copy"
    RESTORE = "restore"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """Where to: each strategy reads the members that it needs.

    `to` is the number of each publisher, -1 for the place before the first. `other` is
    the position to copy, `move` the one whose previous position is restored.
    """

    strategy: Strategy
    to: Mapping[str, int] = field(default_factory=dict)
    at: datetime | None = None
    by: int = 0
    other: int | None = None
    move: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedPoison:
    """An open poison, and where in its topic its message is."""

    id: int
    consumer_group: str
    error: str
    place: BookmarkPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """The open poisons of a topic whose bookmark tells a place, newest failure first.

    `whole` says whether all open ones were looked at.
    """

    poisons: Sequence[PlacedPoison]
    whole: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What happens to one publisher's mark; `beyond` is more than anybody has seen."""

    change: Change
    replayed: Sequence[PlacedPoison]
    passed_over: Sequence[PlacedPoison]
    beyond: bool

    @property
    def goes_back(self) -> bool:
        return self.change.new <= self.change.old


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """What a move would do by now; `settled_at` is when the holder last settled.

    `fixed` is the wish with its numbers worked out: it means the same later.
    """

    position: BookmarkPosition
    fixed: Wish
    steps: Sequence[Step]
    settled_at: datetime | None
    whole: bool

    @property
    def outcome(self) -> list[object]:
        """Give what whoever looks agrees to: where each mark ends, back or forward.

        That the holder goes on settling meanwhile does not always change it.
        """
        ends = [(s.change.publisher, s.change.new, s.goes_back) for s in self.steps]
        return [self.position.epoch, *ends]

    @property
    def changes_nothing(self) -> bool:
        return all(step.change.changes_nothing for step in self.steps)

    def is_held(self, now: datetime) -> bool:
        """Tell whether the holder is at work."""
        return self.settled_at is not None and now - self.settled_at < QUIET_AFTER


class Otherwise(Refused):
    """The position has moved since you looked at it; this is how things stand now."""


class StillHeld(Refused):
    """Its consumer settled within the last 2 minutes: stop it first, or fence it."""


def review(
    *, position_id: int, wish: Wish, principal: Principal, now: datetime
) -> Review:
    """Tell what a move would do, and change nothing."""
    position = _movable(position_id, principal)
    return _review(position, wish, principal, now=now)


@transaction.atomic
def move(
    *,
    position_id: int,
    wish: Wish,
    reason: str,
    fence: bool,
    principal: Principal,
    now: datetime,
    agreed: Callable[[Review], bool] = lambda _: True,
) -> tuple[Review, Move]:
    """Move a position and fence its holder, who resumes at the new place.

    `agreed` says whether what would be done is still what was looked at: Otherwise is
    raised if not. Raises StillHeld while the holder is at work, unless it is fenced.
    """
    principal.require(Scope.POSITIONS_WRITE)
    reason = _usable(reason)
    position = moving.lock(position_id=_movable(position_id, principal).pk)
    seen = _review(position, wish, principal, now=now)
    if not agreed(seen):
        raise Otherwise
    if seen.changes_nothing:
        raise Refused("The position is there already.")
    if seen.is_held(now) and not fence:
        raise StillHeld
    done = moving.write(
        position=position,
        changes=[step.change for step in seen.steps],
        actor=str(principal.actor),
        reason=reason,
        restores=wish.move if wish.strategy is Strategy.RESTORE else None,
        now=now,
    )
    _record(position, seen, done, principal, fenced=seen.is_held(now), now=now)
    return seen, done


def placed(*, topic_id: int) -> Placed:
    """Find where in their topic its open poisons are, as far as their bookmarks say."""
    rows = Poison.objects.open().filter(topic=topic_id).recent_first()
    found = list(
        rows.defer("bookmark").annotate(
            start=Func(
                F("bookmark"),
                Value(1),
                # One more than the longest: what is cut is a place no more.
                Value(LONGEST + 1),
                function="substring",
                output_field=BinaryField(),
            )
        )[: MOST_LOOKED_AT + 1]
    )
    return Placed(
        poisons=list(_placed(found[:MOST_LOOKED_AT])),
        whole=len(found) <= MOST_LOOKED_AT,
    )


def _placed(rows: Sequence[Poison]) -> Iterator[PlacedPoison]:
    for poison in rows:
        start: memoryview = getattr(poison, "start")  # noqa: B009 - annotated above
        place = place_of(bytes(start).decode("utf-8", "replace"))
        if place is not None:
            yield PlacedPoison(
                id=poison.pk,
                consumer_group=poison.consumer_group,
                error=poison.error_type or poison.cause,
                place=place,
            )


def _movable(position_id: int, principal: Principal) -> BookmarkPosition:
    seen = BookmarkPosition.objects.on_topics(principal.topics)
    position = seen.select_related("topic").filter(pk=position_id).first()
    if position is None:
        raise Absent(f"There is no position {position_id} here.")
    if position.source == Source.BROKER:
        raise Refused("Its broker keeps this position: move it there.")
    return position


def _review(
    position: BookmarkPosition, wish: Wish, principal: Principal, *, now: datetime
) -> Review:
    targets = _TARGETS[wish.strategy](position, wish, principal, now)
    changes = moving.compare(position_id=position.pk, targets=targets)
    furthest = moving.furthest(topic_id=position.topic_id)
    known = placed(topic_id=position.topic_id)
    return Review(
        position=position,
        fixed=_fixed(wish, targets),
        steps=[_step(change, known.poisons, furthest) for change in changes],
        settled_at=moving.holder_settled_at(position_id=position.pk),
        whole=known.whole,
    )


def _fixed(wish: Wish, targets: Targets) -> Wish:
    if wish.strategy is Strategy.RESTORE:
        return wish  # what it restores is kept, and may be more than a number
    ends = {publisher: watermark(runs) for publisher, runs in targets.items()}
    return Wish(strategy=Strategy.EXACT, to=ends)


def _step(
    change: Change, poisons: Sequence[PlacedPoison], furthest: Mapping[str, int]
) -> Step:
    own = [poison for poison in poisons if poison.place.publisher == change.publisher]
    return Step(
        change=change,
        replayed=_within(own, change.replayed),
        passed_over=_within(own, change.passed_over),
        beyond=change.new > max(furthest.get(change.publisher, NOWHERE), change.old),
    )


def _within(poisons: Sequence[PlacedPoison], runs: Runs) -> list[PlacedPoison]:
    return [poison for poison in poisons if holds(runs, poison.place.seq)]


def _start(
    position: BookmarkPosition, _: Wish, __: Principal, ___: datetime
) -> Targets:
    return dict.fromkeys(_watermarks(position), up_to(NOWHERE))


def _end(position: BookmarkPosition, _: Wish, __: Principal, ___: datetime) -> Targets:
    furthest = moving.furthest(topic_id=position.topic_id)
    return _each(position, furthest.__getitem__)


def _time(
    position: BookmarkPosition, wish: Wish, _: Principal, now: datetime
) -> Targets:
    if wish.at is None or wish.at > now:
        raise Invalid("at", "give a time that is past")
    stood = history.watermarks_at(position_id=position.pk, at=wish.at)
    if not stood:
        raise Invalid("at", "nobody noted where this position stood so long ago")
    # A publisher that was not heard of by then had nothing settled.
    return _each(position, lambda publisher: stood.get(publisher, NOWHERE))


def _exact(_: BookmarkPosition, wish: Wish, __: Principal, ___: datetime) -> Targets:
    if not wish.to:
        raise Invalid("to", "say where to, for at least one publisher")
    return {publisher: up_to(seq) for publisher, seq in wish.to.items()}


def _shift(
    position: BookmarkPosition, wish: Wish, _: Principal, __: datetime
) -> Targets:
    marks = _watermarks(position)
    if not wish.by:
        raise Invalid("by", "give a number other than 0")
    return _each(position, lambda name: min(max(marks[name] + wish.by, NOWHERE), LAST))


def _copy(
    position: BookmarkPosition, wish: Wish, principal: Principal, _: datetime
) -> Targets:
    seen = BookmarkPosition.objects.on_topics(principal.topics)
    others = seen.filter(topic=position.topic_id).exclude(pk=position.pk)
    other = others.filter(pk=wish.other or 0).first()
    if other is None:
        raise Invalid("other", "choose another consumer of the same topic")
    marks = _watermarks(other)
    if not marks:
        raise Invalid("other", "that consumer has no position yet")
    return {publisher: up_to(seq) for publisher, seq in marks.items()}


def _restore(
    position: BookmarkPosition, wish: Wish, _: Principal, __: datetime
) -> Targets:
    moved = Moved.objects.filter(move=wish.move, move__position=position)
    before = dict(moved.values_list("publisher", "before"))
    if not before:
        raise Invalid("move", "this position has no such move")
    return before


_TARGETS: dict[
    Strategy, Callable[[BookmarkPosition, Wish, Principal, datetime], Targets]
] = {
    Strategy.START: _start,
    Strategy.END: _end,
    Strategy.TIME: _time,
    Strategy.EXACT: _exact,
    Strategy.SHIFT: _shift,
    Strategy.COPY: _copy,
    Strategy.RESTORE: _restore,
}


def _watermarks(position: BookmarkPosition) -> dict[str, int]:
    marks = Mark.objects.filter(position=position)
    return dict(marks.values_list("publisher", "processed"))


def _each(position: BookmarkPosition, seq_of: Callable[[str], int]) -> Targets:
    return {name: up_to(seq_of(name)) for name in _watermarks(position)}


def _usable(reason: str) -> str:
    reason = storable(reason.strip())
    if not 0 < len(reason) <= REASON_LIMIT:
        raise Invalid("reason", f"say why, in at most {REASON_LIMIT} characters")
    return reason


def _record(
    position: BookmarkPosition,
    seen: Review,
    done: Move,
    principal: Principal,
    *,
    fenced: bool,
    now: datetime,
) -> None:
    audit.record(
        action=Action.POSITION_MOVED,
        subject=f"position:{position.pk}",
        actor=principal.actor,
        reason=done.reason,
        source=principal.source,
        now=now,
        detail={
            "topic": position.topic.name,
            "client_name": position.client_name,
            "sub_id": position.sub_id,
            "epoch": done.epoch,
            "restores": done.restores_id,
            "fenced": fenced,
            # As text: JavaScript cannot hold such numbers, nor can every reader.
            "before": {
                step.change.publisher: str(step.change.old) for step in seen.steps
            },
            "after": {
                step.change.publisher: str(step.change.new) for step in seen.steps
            },
        },
    )
