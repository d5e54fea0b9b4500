"""Move a position by hand: review what a move would do, then do exactly that.

A rewind replays every message after the target. A fast-forward passes over the messages
up to the target that are not settled; what is settled beyond it stays settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import transaction
from django.db.models import BinaryField, F, Func, Value

from apps.audit import services as audit
from apps.audit.services import Action, clean_reason
from apps.bookmarks.bookmark_parsing import LONGEST, BookmarkPlace, place_of
from apps.bookmarks.models import BookmarkPosition, Mark, Move, Moved
from apps.bookmarks.position_keepers import PositionSource
from apps.bookmarks.runs_of_settled_positions import (
    LAST,
    NOWHERE,
    Runs,
    holds,
    up_to,
    watermark,
)
from apps.bookmarks.services import position_move_storage, watermark_samples
from apps.bookmarks.services.position_move_storage import MarkChange
from apps.core.errors import Absent, Invalid, Refused
from apps.poison.models import Poison
from apps.team.rights import Principal, Scope

Targets = dict[str, Runs]

# A holder that settled this recently is at work: it would overwrite the move.
QUIET_AFTER = timedelta(minutes=2)
# The database cannot order bookmarks: only this many of the newest are examined.
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
class MoveTarget:
    """The requested target: each strategy reads the members that it needs.

    `to` has each publisher's number, -1 for the place before the first. `other` is the
    position to copy, `move` the move whose previous position is restored.
    """

    strategy: Strategy
    to: Mapping[str, int] = field(default_factory=dict)
    at: datetime | None = None
    by: int = 0
    other: int | None = None
    move: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedPoison:
    """An open poison, and the place of its message in its topic."""

    id: int
    consumer_group: str
    error: str
    place: BookmarkPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedPoisons:
    """The open poisons of a topic whose bookmark names a place, newest failure first.

    `whole`: all open poisons were examined.
    """

    poisons: Sequence[LocatedPoison]
    whole: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkMove:
    """The change of one publisher's mark; `beyond` any number that was ever seen."""

    change: MarkChange
    replayed: Sequence[LocatedPoison]
    passed_over: Sequence[LocatedPoison]
    beyond: bool

    @property
    def goes_back(self) -> bool:
        """Tell whether a move sets a publisher's mark back, or lets it stay.

        Messages of the publisher come again then.
        """
        return self.change.new <= self.change.old


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """What a move would do now; `settled_at` is when the holder last settled.

    `fixed` is the wish resolved to numbers, so that it still means the same later.
    """

    position: BookmarkPosition
    fixed: MoveTarget
    steps: Sequence[MarkMove]
    settled_at: datetime | None
    whole: bool

    @property
    def outcome(self) -> list[object]:
        """Return what the actor of a move agrees to: each mark's end, back or forward.

        It often stays the same while the holder goes on settling.
        """
        ends = [(s.change.publisher, s.change.new, s.goes_back) for s in self.steps]
        return [self.position.epoch, *ends]

    @property
    def changes_nothing(self) -> bool:
        return all(step.change.changes_nothing for step in self.steps)

    def is_held(self, now: datetime) -> bool:
        """Tell whether the position's holder is at work, as it settled lately."""
        return self.settled_at is not None and now - self.settled_at < QUIET_AFTER


class PositionChanged(Refused):
    """The position has moved since you looked at it; this is how things stand now."""

    problem = "otherwise"


class StillHeld(Refused):
    """Its consumer settled within the last 2 minutes: stop it first, or fence it."""


def review(
    *, position_id: int, wish: MoveTarget, principal: Principal, now: datetime
) -> Review:
    """Compute what a position's move would do, and change nothing."""
    position = _movable_position(position_id, principal)
    return _review(position, wish, principal, now=now)


@transaction.atomic
def move(
    *,
    position_id: int,
    wish: MoveTarget,
    reason: str,
    fence: bool,
    principal: Principal,
    now: datetime,
    agreed: Callable[[Review], bool] = lambda _: True,
) -> tuple[Review, Move]:
    """Move a position and fence its holder, which resumes at the new place.

    Raises PositionChanged unless `agreed` accepts the review made under the lock.
    Raises StillHeld while the holder is at work, unless it is fenced.
    """
    principal.require(Scope.POSITIONS_WRITE)
    reason = clean_reason(reason)
    if not reason:
        raise Invalid("reason", "say why; the audit trail records it")
    position = position_move_storage.lock(
        position_id=_movable_position(position_id, principal).pk
    )
    current = _review(position, wish, principal, now=now)
    if not agreed(current):
        raise PositionChanged
    if current.changes_nothing:
        raise Refused("The position is there already.")
    is_held = current.is_held(now)
    if is_held and not fence:
        raise StillHeld
    record = position_move_storage.write(
        position=position,
        changes=[step.change for step in current.steps],
        actor=str(principal.actor),
        reason=reason,
        restores=wish.move if wish.strategy is Strategy.RESTORE else None,
        now=now,
    )
    _audit_move(position, current, record, principal, fenced=is_held, now=now)
    return current, record


def locate_poisons(*, topic_id: int) -> LocatedPoisons:
    """Locate a topic's open poisons by their bookmarks, where these are places."""
    open_poisons = Poison.objects.open().filter(topic=topic_id).recent_first()
    rows = list(
        open_poisons.defer("bookmark").annotate(
            start=Func(
                F("bookmark"),
                Value(1),
                # One more than the longest: a bookmark cut off here names no place.
                Value(LONGEST + 1),
                function="substring",
                output_field=BinaryField(),
            )
        )[: MOST_LOOKED_AT + 1]
    )
    return LocatedPoisons(
        poisons=list(_locate(rows[:MOST_LOOKED_AT])),
        whole=len(rows) <= MOST_LOOKED_AT,
    )


def _locate(rows: Sequence[Poison]) -> Iterator[LocatedPoison]:
    """Yield each message whose bookmark names a place in its topic."""
    for poison in rows:
        start: memoryview = getattr(poison, "start")  # noqa: B009 - annotated above
        place = place_of(bytes(start).decode("utf-8", "replace"))
        if place is not None:
            yield LocatedPoison(
                id=poison.pk,
                consumer_group=poison.consumer_group,
                error=poison.error_type or poison.cause,
                place=place,
            )


def _movable_position(position_id: int, principal: Principal) -> BookmarkPosition:
    """Find a visible position that guards keep; raise Absent or Refused."""
    positions = BookmarkPosition.objects.on_topics(principal.topics)
    position = positions.select_related("topic").filter(pk=position_id).first()
    if position is None:
        raise Absent(f"There is no position {position_id} here.")
    if position.source == PositionSource.BROKER:
        raise Refused("Its broker keeps this position: move it there.")
    return position


def _review(
    position: BookmarkPosition, wish: MoveTarget, principal: Principal, *, now: datetime
) -> Review:
    """Compute what a position's move would change, replay and pass over."""
    targets = _TARGETS[wish.strategy](position, wish, principal, now)
    changes = position_move_storage.compare(position_id=position.pk, targets=targets)
    furthest = position_move_storage.furthest(topic_id=position.topic_id)
    located = locate_poisons(topic_id=position.topic_id)
    return Review(
        position=position,
        fixed=_resolve(wish, targets),
        steps=[_step_of(change, located.poisons, furthest) for change in changes],
        settled_at=position_move_storage.holder_settled_at(position_id=position.pk),
        whole=located.whole,
    )


def _resolve(wish: MoveTarget, targets: Targets) -> MoveTarget:
    """Return the request of a position's move with its target as exact numbers.

    That of a restore stays as it is.
    """
    if wish.strategy is Strategy.RESTORE:
        return wish  # a stored mark may hold more than one number
    ends = {publisher: watermark(runs) for publisher, runs in targets.items()}
    return MoveTarget(strategy=Strategy.EXACT, to=ends)


def _step_of(
    change: MarkChange, poisons: Sequence[LocatedPoison], furthest: Mapping[str, int]
) -> MarkMove:
    """Compute what moving one publisher's mark replays and passes over."""
    own = [poison for poison in poisons if poison.place.publisher == change.publisher]
    return MarkMove(
        change=change,
        replayed=_within(own, change.replayed),
        passed_over=_within(own, change.passed_over),
        beyond=change.new > max(furthest.get(change.publisher, NOWHERE), change.old),
    )


def _within(poisons: Sequence[LocatedPoison], runs: Runs) -> list[LocatedPoison]:
    """Return the poisons whose message's place in the topic lies in these runs."""
    return [poison for poison in poisons if holds(runs, poison.place.seq)]


def _target_start(
    position: BookmarkPosition, _: MoveTarget, __: Principal, ___: datetime
) -> Targets:
    """Target a move at the place before each publisher's first message."""
    return dict.fromkeys(_watermarks(position), up_to(NOWHERE))


def _target_end(
    position: BookmarkPosition, _: MoveTarget, __: Principal, ___: datetime
) -> Targets:
    """Target a move at the highest known number of each publisher."""
    furthest = position_move_storage.furthest(topic_id=position.topic_id)
    return _target_each(position, furthest.__getitem__)


def _target_time(
    position: BookmarkPosition, wish: MoveTarget, _: Principal, now: datetime
) -> Targets:
    """Target a move at each mark's place at a time; raise Invalid if unknown."""
    if wish.at is None or wish.at > now:
        raise Invalid("at", "give a time that is past")
    watermarks = watermark_samples.watermarks_at(position_id=position.pk, at=wish.at)
    if not watermarks:
        raise Invalid("at", "no position is recorded for a time that long ago")
    # A publisher that was not known by then had no message settled.
    return _target_each(position, lambda publisher: watermarks.get(publisher, NOWHERE))


def _target_exact(
    _: BookmarkPosition, wish: MoveTarget, __: Principal, ___: datetime
) -> Targets:
    """Target a move at the given numbers; raise Invalid without any."""
    if not wish.to:
        raise Invalid("to", "say where to, for at least one publisher")
    return {publisher: up_to(seq) for publisher, seq in wish.to.items()}


def _target_shift(
    position: BookmarkPosition, wish: MoveTarget, _: Principal, __: datetime
) -> Targets:
    """Target a move at a number of messages from each mark; raise Invalid for 0."""
    marks = _watermarks(position)
    if not wish.by:
        raise Invalid("by", "give a number other than 0")
    return _target_each(
        position, lambda name: min(max(marks[name] + wish.by, NOWHERE), LAST)
    )


def _target_copy(
    position: BookmarkPosition, wish: MoveTarget, principal: Principal, _: datetime
) -> Targets:
    """Target a move at another consumer's marks; raise Invalid without one."""
    positions = BookmarkPosition.objects.on_topics(principal.topics)
    others = positions.filter(topic=position.topic_id).exclude(pk=position.pk)
    other = others.filter(pk=wish.other or 0).first()
    if other is None:
        raise Invalid("other", "choose another consumer of the same topic")
    marks = _watermarks(other)
    if not marks:
        raise Invalid("other", "that consumer has no position yet")
    return {publisher: up_to(seq) for publisher, seq in marks.items()}


def _target_restore(
    position: BookmarkPosition, wish: MoveTarget, _: Principal, __: datetime
) -> Targets:
    """Target a move at what was settled before an earlier one; raise Invalid."""
    rows = Moved.objects.filter(move=wish.move, move__position=position)
    before = dict(rows.values_list("publisher", "before"))
    if not before:
        raise Invalid("move", "this position has no such move")
    return before


_TARGETS: dict[
    Strategy, Callable[[BookmarkPosition, MoveTarget, Principal, datetime], Targets]
] = {
    Strategy.START: _target_start,
    Strategy.END: _target_end,
    Strategy.TIME: _target_time,
    Strategy.EXACT: _target_exact,
    Strategy.SHIFT: _target_shift,
    Strategy.COPY: _target_copy,
    Strategy.RESTORE: _target_restore,
}


def _watermarks(position: BookmarkPosition) -> dict[str, int]:
    """Read the watermark of each publisher from the position's marks."""
    marks = Mark.objects.filter(position=position)
    return dict(marks.values_list("publisher", "processed"))


def _target_each(position: BookmarkPosition, seq_of: Callable[[str], int]) -> Targets:
    """Target a move at a number for each of the position's publishers."""
    return {name: up_to(seq_of(name)) for name in _watermarks(position)}


def _audit_move(
    position: BookmarkPosition,
    agreed: Review,
    record: Move,
    principal: Principal,
    *,
    fenced: bool,
    now: datetime,
) -> None:
    """Append the move of a position to the audit."""
    audit.record(
        action=Action.POSITION_MOVED,
        subject=f"position:{position.pk}",
        actor=principal.actor,
        reason=record.reason,
        source=principal.source,
        now=now,
        detail={
            "topic": position.topic.name,
            "client_name": position.client_name,
            "sub_id": position.sub_id,
            "epoch": record.epoch,
            "restores": record.restores_id,
            "fenced": fenced,
            # As text: JavaScript cannot hold such numbers, nor can every reader.
            "before": {
                step.change.publisher: str(step.change.old) for step in agreed.steps
            },
            "after": {
                step.change.publisher: str(step.change.new) for step in agreed.steps
            },
        },
    )
