"""Carry an operation out, in slices that a kill -9 at any instant cannot harm.

A slice holds the operation's lock and works for some seconds: claim a window of items
in one transaction, publish it with no transaction open, mark what the broker said. The
next window is claimed meanwhile, in a thread with a connection of its own; but it is
published only when the one before is marked.

What a crash leaves: up to two claimed windows are `sending` under an older epoch, and
the next run sends them again under the same redrive ids. Of these only one had been
published, so at most one window is sent twice.

What a broker was surely not given, because it was away or turned it away, has its claim
undone and waits again; only what may have been sent is unknown.

An operation that keeps order sends the next message of a line only when the broker has
the one before. Where that is refused, the rest of its line is kept back.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import zip_longest
from typing import ParamSpec, TypeVar

from django.db import connection, connections, transaction
from django.db.models import F

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import ports
from apps.brokers.services import topics as brokers
from apps.brokers.services.topics import RoutingPublisher
from apps.core import lock
from apps.core.actor import Actor
from apps.core.arrays import array
from apps.core.errors import Refused
from apps.core.lock import Lock
from apps.core.sql import read_by_index
from apps.core.text import storable
from apps.poison import services as poison
from apps.poison.states import IN_FLIGHT, Outcome
from apps.triage.errors import LockLost
from apps.triage.models import Item, Operation
from apps.triage.services import outbound
from apps.triage.services.decision import described, only_message
from apps.triage.services.outbound import Parcel, Window, answered, is_unsent
from apps.triage.states import SENDS, ItemState, State, Verb

log = logging.getLogger(__name__)

SLICE = timedelta(seconds=10)
WINDOW = 200
WINDOW_BYTES = 32 * 1024 * 1024
MANY = 5_000
BACK_OFF_BASE = 0.5
BACK_OFF_CAP = 30.0

KEPT_BACK = ports.Outcome(
    kind=ports.OutcomeKind.REFUSED,
    detail="kept back: an earlier message of its topic was refused",
)
_TRY_AGAIN = (ports.OutcomeKind.UNKNOWN, ports.OutcomeKind.UNSENT)

Clock = Callable[[], datetime]
Line = int
Key = TypeVar("Key")
P = ParamSpec("P")
Given = TypeVar("Given")


class Ended(StrEnum):
    """How a slice ended: somebody else has it, go on at once, wait, or all done."""

    ELSEWHERE = "elsewhere"
    AGAIN = "again"
    LATER = "later"
    DONE = "done"


def run(*, operation_id: int, publisher: RoutingPublisher, clock: Clock) -> Ended:
    """Work on an operation for one slice, unless somebody else does."""
    with lock.attempt(f"operation:{operation_id}") as held:
        if held is None:
            return Ended.ELSEWHERE
        operation = _begin(operation_id)
        if operation is None:
            return Ended.DONE
        run_slice = _Slice(operation, held, publisher, clock)
        try:
            return run_slice.work()
        except LockLost:
            log.warning("operation %d was taken over by another run", operation_id)
            return Ended.ELSEWHERE
        except Exception as error:
            _wait(operation, f"{type(error).__name__}: {error}", now=clock())
            raise


def _begin(operation_id: int) -> Operation | None:
    """Start a new epoch: whoever still writes under an older one is fenced off."""
    this = Operation.objects.filter(pk=operation_id)
    if not this.transition(to=State.RUNNING, epoch=F("epoch") + 1):
        return None
    return this.get()


def _wait(operation: Operation, trouble: str, *, now: datetime) -> None:
    """Say why the operation stands still, and when it is tried again."""
    same = Operation.objects.filter(pk=operation.pk, epoch=operation.epoch)
    same.update(
        trouble=storable(trouble, limit=500),
        troubles=operation.troubles + 1,
        retry_at=now + _back_off(operation.troubles),
    )


class _Slice:
    def __init__(
        self,
        operation: Operation,
        held: Lock,
        publisher: RoutingPublisher,
        clock: Clock,
    ) -> None:
        self.operation = operation
        self.epoch = operation.epoch
        self.held = held
        self.publisher = publisher
        self.clock = clock
        self.until = clock() + SLICE
        self.trouble = ""
        self.inherits = True
        self.unmarked = brokers.topics_without_headers()
        self.stuck: dict[Line, ports.Outcome] = {}

    def work(self) -> Ended:
        self._release_answered()
        if self.operation.verb in SENDS:
            self._redrive()
        else:
            self._decide()
        return self._end()

    # Drop and restore: nothing but the database, in large windows.

    def _decide(self) -> None:
        while self.clock() < self.until and self._decide_window():
            pass

    @transaction.atomic
    def _decide_window(self) -> bool:
        read_by_index()
        self._fence()
        items = dict(
            self.operation.items.waiting()
            .order_by("id")
            .values_list("poison_id", "id")[:MANY]
        )
        if not items:
            return False
        if self.operation.verb == Verb.DROP:
            acted = poison.drop(poisons=list(items), now=self.clock())
            became = ItemState.DROPPED
        else:
            acted, became = poison.restore(poisons=list(items)), ItemState.RESTORED
        self._settle([items[pk] for pk in acted], became)
        self._skip([item for pk, item in items.items() if pk not in acted])
        return True

    def _settle(self, items: Sequence[int], state: ItemState) -> None:
        Item.objects.filter(pk__in=items).update(state=state.value, held=False)

    def _skip(self, items: Sequence[int]) -> None:
        """Pass over what somebody or something else has decided meanwhile."""
        if not items:
            return
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE triage_item SET state = 'skipped', held = false,"
                " reason = 'meanwhile it became ' || poison_poison.state"
                " FROM poison_poison WHERE poison_poison.id = triage_item.poison_id"
                " AND triage_item.id = ANY(%s)",
                [list(items)],
            )

    # Redrive: claim, publish, mark; aside, the next window is claimed meanwhile.

    def _redrive(self) -> None:
        if self.operation.ordered:
            self.stuck = dict.fromkeys(self._refused_lines(), KEPT_BACK)
        with _aside() as claiming:
            claimed = claiming.submit(self._next_window)
            while window := claimed.result().pack():
                claimed = claiming.submit(self._following_window)
                self._mark(window, self._publish(window))
                # A broker that is away is not asked again before the back-off is over.
                if self.trouble:
                    self._give_up(claimed.result().pack())
                    return

    def _publish(self, window: Sequence[Parcel]) -> list[ports.Outcome]:
        if not self.operation.ordered:
            return self.publisher.publish([parcel.message for parcel in window])
        lines: dict[Line, list[Parcel]] = {}
        for parcel in window:
            lines.setdefault(_line(parcel), []).append(parcel)
        told: dict[uuid.UUID, ports.Outcome] = {}
        for abreast in zip_longest(*lines.values()):
            told |= self._send_abreast([p for p in abreast if p is not None])
        return [told[parcel.redrive] for parcel in window]

    def _send_abreast(self, first: list[Parcel]) -> dict[uuid.UUID, ports.Outcome]:
        """Send the first of each line, unless one before it did not arrive."""
        going = [parcel for parcel in first if _line(parcel) not in self.stuck]
        sent = self.publisher.publish([parcel.message for parcel in going])
        told = {
            parcel.redrive: self.stuck[_line(parcel)]
            for parcel in first
            if _line(parcel) in self.stuck
        }
        for parcel, outcome in zip(going, sent, strict=True):
            told[parcel.redrive] = outcome
            if outcome.kind in _TRY_AGAIN:
                behind = replace(outcome, kind=ports.OutcomeKind.UNSENT)
                self.stuck[_line(parcel)] = behind
            elif answered(parcel, outcome).outcome is Outcome.REFUSED:
                self.stuck[_line(parcel)] = KEPT_BACK
        return told

    def _refused_lines(self) -> list[Line]:
        refused = self.operation.items.filter(redrive__outcome=Outcome.REFUSED)
        return list(refused.values_list("redrive__topic_id", flat=True).distinct())

    def _following_window(self) -> Window:
        return self._next_window() if self.clock() < self.until else Window()

    def _next_window(self) -> Window:
        """Take over what an older epoch left in flight; then claim what waits."""
        if self.held.lost():
            raise LockLost
        with transaction.atomic():
            read_by_index()
            self._fence()
            redrives = self._left_in_flight() if self.inherits else []
            # Nothing is left in flight by others while this run holds the lock.
            self.inherits = bool(redrives)
            redrives = redrives or self._claim()
        return outbound.read(redrives) if redrives else Window()

    def _left_in_flight(self) -> list[uuid.UUID]:
        left = (
            self.operation.items.in_flight()
            .filter(redrive__epoch__lt=self.epoch)
            .order_by("id")
            .values_list("redrive__id", "poison__size")[:WINDOW]
        )
        chosen = _bounded(left)
        taken = poison.take_over(redrives=chosen, epoch=self.epoch) if chosen else set()
        return [redrive for redrive in chosen if redrive in taken]

    def _claim(self) -> list[uuid.UUID]:
        """Claim the next window that has anything to send; pass over what has not."""
        while True:
            waiting = self.operation.items.waiting().order_by("id")
            rows = list(waiting.values_list("poison_id", "poison__size", "id")[:WINDOW])
            chosen = set(_bounded((pk, size) for pk, size, _ in rows))
            items = {pk: item for pk, _, item in rows if pk in chosen}
            if not items:
                return []
            begun = poison.begin(
                poisons=list(items),
                target=self.operation.target_topic_id,
                queue=self._queue(),
                unmarked=self.unmarked,
                epoch=self.epoch,
                now=self.clock(),
            )
            self._skip([item for pk, item in items.items() if pk not in begun])
            if begun:
                _attach({items[pk]: redrive for pk, redrive in begun.items()})
                return [begun[pk] for pk in items if pk in begun]

    def _queue(self) -> str:
        """Name the dead-letter queue to give back to; "" for any other operation."""
        topic = self.operation.target_topic
        if self.operation.verb != Verb.GIVE_BACK or topic is None:
            return ""
        if not topic.dead_letter_queue:
            raise Refused(f"the topic {topic.name} has no dead-letter queue any more")
        return topic.dead_letter_queue

    def _mark(
        self, window: Sequence[Parcel], outcomes: Sequence[ports.Outcome]
    ) -> None:
        pairs = list(zip(window, outcomes, strict=True))
        for _, outcome in pairs:
            if outcome.kind in _TRY_AGAIN:
                self.trouble = outcome.detail or "the broker did not answer"
        unsent = [parcel for parcel, outcome in pairs if is_unsent(parcel, outcome)]
        answers = [answered(*pair) for pair in pairs if not is_unsent(*pair)]
        with transaction.atomic():
            read_by_index()
            self._fence()
            poison.mark(
                poisons=[parcel.poison for parcel in window],
                answers=answers,
                epoch=self.epoch,
                now=self.clock(),
            )
            _release(a.redrive for a in answers if a.outcome is not Outcome.UNKNOWN)
            self._withdraw(unsent)

    def _withdraw(self, unsent: Sequence[Parcel]) -> None:
        """Let what no broker was given wait again, under no redrive id."""
        if unsent:
            undone = poison.withdraw(
                poisons=[parcel.poison for parcel in unsent],
                redrives=[parcel.redrive for parcel in unsent],
                epoch=self.epoch,
            )
            _detach(undone)

    def _give_up(self, window: Sequence[Parcel]) -> None:
        """Leave a window that was claimed but not published for the next run."""
        unsent = ports.Outcome(kind=ports.OutcomeKind.UNSENT, detail=self.trouble)
        if window:
            self._mark(window, [unsent] * len(window))

    def _fence(self) -> None:
        """Stop a run whose lock was lost without its noticing.

        Shared, so that a window may be claimed while another one is marked; a run that
        begins a new epoch waits for both.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT FROM triage_operation WHERE id = %s AND epoch = %s FOR SHARE",
                [self.operation.pk, self.epoch],
            )
            if not cursor.rowcount:
                raise LockLost

    def _release_answered(self) -> None:
        """Let go of what a consumer has answered, though its broker never did."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE triage_item SET held = false FROM poison_redrive"
                " WHERE poison_redrive.id = triage_item.redrive_id"
                " AND triage_item.operation_id = %s AND triage_item.held"
                " AND poison_redrive.outcome <> ALL(%s)",
                [self.operation.pk, list(IN_FLIGHT)],
            )

    @transaction.atomic
    def _end(self) -> Ended:
        self._fence()
        self._release_answered()
        this = Operation.objects.filter(pk=self.operation.pk)
        if not self.operation.items.unfinished().exists():
            self._finish()
            return Ended.DONE
        if not self.trouble:
            this.update(trouble="", troubles=0, retry_at=None)
            return Ended.AGAIN
        _wait(self.operation, self.trouble, now=self.clock())
        return Ended.LATER

    def _finish(self) -> None:
        now = self.clock()
        Operation.objects.filter(pk=self.operation.pk).transition(
            to=State.DONE,
            finished_at=now,
            trouble="",
            troubles=0,
            retry_at=None,
        )
        counts = self.operation.items.counts()
        audit.record(
            action=Action.OPERATION_FINISHED,
            subject=f"operation:{self.operation.pk}",
            actor=Actor.system("worker"),
            now=now,
            detail={
                **described(self.operation),
                "for": self.operation.actor,
                "counts": {name: number for name, number in counts.items() if number},
                **only_message(self.operation.items.all(), self.operation.total),
            },
        )


class _Here(Executor):
    """Does at once, in the caller's thread, what it is given."""

    def submit(
        self, work: Callable[P, Given], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[Given]:
        done = Future[Given]()
        done.set_result(work(*args, **kwargs))
        return done


@contextmanager
def _aside() -> Iterator[Executor]:
    """Give a thread that has a database connection of its own while it lives.

    No other connection sees what a caller's open transaction wrote: inside one, there
    is no thread.
    """
    if connection.in_atomic_block:
        yield _Here()
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="claim") as thread:
        try:
            yield thread
        finally:
            thread.submit(connections.close_all)


def _line(parcel: Parcel) -> Line:
    """Name the line that a message stands in: its topic, for keys are not known."""
    return parcel.message.topic.pk


def _bounded(rows: Iterable[tuple[Key, int]]) -> list[Key]:
    """Take rows of (key, size) as long as they fit into one window's memory."""
    chosen: list[Key] = []
    total = 0
    for key, size in rows:
        total += size
        if chosen and total > WINDOW_BYTES:
            break
        chosen.append(key)
    return chosen


def _release(redrives: Iterable[uuid.UUID]) -> None:
    """Let go of the items whose redrive is no longer in flight."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE triage_item SET held = false"
            " WHERE redrive_id = ANY(%s::uuid[]) AND held",
            [array(redrives)],
        )


def _attach(redrives: dict[int, uuid.UUID]) -> None:
    with connection.cursor() as cursor:
        # Its bounds keep Postgres from reading the whole table for a window's few.
        cursor.execute(
            "UPDATE triage_item SET state = 'claimed', redrive_id = told.redrive"
            " FROM unnest(%s::int8[], %s::uuid[]) AS told(item, redrive)"
            " WHERE triage_item.id = told.item AND triage_item.id BETWEEN %s AND %s",
            [
                *(array(redrives), array(redrives.values())),
                *(min(redrives), max(redrives)),
            ],
        )


def _detach(redrives: Iterable[uuid.UUID]) -> None:
    """Let the items of redrives that were undone wait; they stay held."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE triage_item SET state = 'waiting', redrive_id = NULL"
            " WHERE redrive_id = ANY(%s::uuid[]) AND state = 'claimed'",
            [array(redrives)],
        )


def _back_off(troubles: int) -> timedelta:
    """Full jitter with a floor (AWS Architecture Blog, exponential back-off)."""
    highest = min(BACK_OFF_CAP, BACK_OFF_BASE * 2 ** min(troubles, 10))
    return timedelta(seconds=BACK_OFF_BASE + random.uniform(0, highest))  # noqa: S311
