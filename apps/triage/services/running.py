"""Carry out an operation, in slices that survive a kill -9 at any instant.

A slice holds the operation's lock and works for some seconds: claim a window of items
in one transaction, publish it with no transaction open, store the broker's answers.
Meanwhile a thread with a connection of its own claims the next window; it is published
only when the window before it is marked.

After a crash up to two claimed windows are `sending` under an older epoch. The next run
sends both again under the same redrive ids. Only one of them had been published, so at
most one window is sent twice.

A message that surely did not reach its broker, because the broker was away or turned it
away, loses its claim and waits again. Only what may have been sent is unknown.

An operation that keeps order sends the next message of a topic only when the broker has
the one before. When the broker refuses a message, the rest of its topic is kept back.
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
from apps.triage.services.decision import audit_detail, single_message
from apps.triage.services.outbound import (
    ClaimedWindow,
    OutboundMessage,
    is_unsent,
    to_answer,
)
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
TopicId = int
Key = TypeVar("Key")
P = ParamSpec("P")
Result = TypeVar("Result")


class SliceEnd(StrEnum):
    """How a slice ended: another run has it, go on at once, wait, or all done."""

    ELSEWHERE = "elsewhere"
    AGAIN = "again"
    LATER = "later"
    DONE = "done"


def run(
    *,
    operation_id: int,
    publisher: RoutingPublisher,
    clock: Clock,
    window: int = WINDOW,
) -> SliceEnd:
    """Work on an operation for one slice, unless another run already does.

    `window` is how many messages are claimed at once, at most.
    """
    with lock.attempt(f"operation:{operation_id}") as operation_lock:
        if operation_lock is None:
            return SliceEnd.ELSEWHERE
        operation = _begin(operation_id)
        if operation is None:
            return SliceEnd.DONE
        operation_run = OperationRun(
            operation, operation_lock, publisher, clock, window=window
        )
        try:
            return operation_run.run_slice()
        except LockLost:
            log.warning("operation %d was taken over by another run", operation_id)
            return SliceEnd.ELSEWHERE
        except Exception as error:
            _wait(operation, f"{type(error).__name__}: {error}", now=clock())
            raise


def _begin(operation_id: int) -> Operation | None:
    """Start a new epoch: it fences off any run that writes under an older one."""
    this = Operation.objects.filter(pk=operation_id)
    if not this.transition(to=State.RUNNING, epoch=F("epoch") + 1):
        return None
    return this.get()


def _wait(operation: Operation, trouble: str, *, now: datetime) -> None:
    """Store why the operation waits, and when it is tried again."""
    same = Operation.objects.filter(pk=operation.pk, epoch=operation.epoch)
    same.update(
        trouble=storable(trouble, limit=500),
        troubles=operation.troubles + 1,
        retry_at=now + _back_off(operation.troubles),
    )


class OperationRun:
    """One run of an operation, under its lock and an epoch of its own."""

    def __init__(
        self,
        operation: Operation,
        operation_lock: Lock,
        publisher: RoutingPublisher,
        clock: Clock,
        *,
        window: int,
    ) -> None:
        self.operation = operation
        self.window = window
        self.epoch = operation.epoch
        self.lock = operation_lock
        self.publisher = publisher
        self.clock = clock
        self.until = clock() + SLICE
        self.trouble = ""
        self.has_orphans = True
        self.unmarked_topics = brokers.topics_without_headers()
        self.stuck_topics: dict[TopicId, ports.Outcome] = {}

    def run_slice(self) -> SliceEnd:
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
            decided = poison.drop(poisons=list(items), now=self.clock())
            state = ItemState.DROPPED
        else:
            decided, state = poison.restore(poisons=list(items)), ItemState.RESTORED
        self._settle([items[pk] for pk in decided], state)
        self._skip([item for pk, item in items.items() if pk not in decided])
        return True

    def _settle(self, items: Sequence[int], state: ItemState) -> None:
        Item.objects.filter(pk__in=items).update(state=state.value, held=False)

    def _skip(self, items: Sequence[int]) -> None:
        """Skip the items whose poison has changed its state meanwhile."""
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

    # Redrive: claim, publish, mark; a thread claims the next window meanwhile.

    def _redrive(self) -> None:
        if self.operation.ordered:
            self.stuck_topics = dict.fromkeys(self._refused_topics(), KEPT_BACK)
        with _claim_executor() as executor:
            claim = executor.submit(self._next_window)
            while messages := claim.result().pack():
                claim = executor.submit(self._following_window)
                self._mark(messages, self._publish(messages))
                # A broker that is away is not asked again before the back-off is over.
                if self.trouble:
                    self._give_up(claim.result().pack())
                    return

    def _publish(self, messages: Sequence[OutboundMessage]) -> list[ports.Outcome]:
        if not self.operation.ordered:
            return self.publisher.publish([each.addressed for each in messages])
        by_topic: dict[TopicId, list[OutboundMessage]] = {}
        for message in messages:
            by_topic.setdefault(_topic_id(message), []).append(message)
        outcomes: dict[uuid.UUID, ports.Outcome] = {}
        for rank in zip_longest(*by_topic.values()):
            outcomes |= self._publish_rank([each for each in rank if each is not None])
        return [outcomes[message.redrive] for message in messages]

    def _publish_rank(
        self, rank: list[OutboundMessage]
    ) -> dict[uuid.UUID, ports.Outcome]:
        """Publish one message of each topic in which no earlier one failed."""
        sendable = [each for each in rank if _topic_id(each) not in self.stuck_topics]
        answers = self.publisher.publish([each.addressed for each in sendable])
        outcomes = {
            message.redrive: self.stuck_topics[_topic_id(message)]
            for message in rank
            if _topic_id(message) in self.stuck_topics
        }
        for message, outcome in zip(sendable, answers, strict=True):
            outcomes[message.redrive] = outcome
            if outcome.kind in _TRY_AGAIN:
                unsent = replace(outcome, kind=ports.OutcomeKind.UNSENT)
                self.stuck_topics[_topic_id(message)] = unsent
            elif to_answer(message, outcome).outcome is Outcome.REFUSED:
                self.stuck_topics[_topic_id(message)] = KEPT_BACK
        return outcomes

    def _refused_topics(self) -> list[TopicId]:
        refused = self.operation.items.filter(redrive__outcome=Outcome.REFUSED)
        return list(refused.values_list("redrive__topic_id", flat=True).distinct())

    def _following_window(self) -> ClaimedWindow:
        return self._next_window() if self.clock() < self.until else ClaimedWindow()

    def _next_window(self) -> ClaimedWindow:
        """Take over what an older epoch left in flight, then claim waiting items."""
        if self.lock.lost():
            raise LockLost
        with transaction.atomic():
            read_by_index()
            self._fence()
            redrives = self._take_over_orphans() if self.has_orphans else []
            # No other run leaves redrives in flight while this one holds the lock.
            self.has_orphans = bool(redrives)
            redrives = redrives or self._claim()
        return outbound.read(redrives) if redrives else ClaimedWindow()

    def _take_over_orphans(self) -> list[uuid.UUID]:
        rows = (
            self.operation.items.in_flight()
            .filter(redrive__epoch__lt=self.epoch)
            .order_by("id")
            .values_list("redrive__id", "poison__size")[: self.window]
        )
        orphans = _fit_in_window(rows)
        if not orphans:
            return []
        own = poison.take_over(redrives=orphans, epoch=self.epoch)
        return [redrive for redrive in orphans if redrive in own]

    def _claim(self) -> list[uuid.UUID]:
        """Claim the next window with anything to send; skip items with nothing."""
        while True:
            waiting = self.operation.items.waiting().order_by("id")
            rows = list(
                waiting.values_list("poison_id", "poison__size", "id")[: self.window]
            )
            window = set(_fit_in_window((pk, size) for pk, size, _ in rows))
            items = {pk: item for pk, _, item in rows if pk in window}
            if not items:
                return []
            redrives = poison.begin(
                poisons=list(items),
                target=self.operation.target_topic_id,
                queue=self._queue(),
                unmarked=self.unmarked_topics,
                epoch=self.epoch,
                now=self.clock(),
            )
            self._skip([item for pk, item in items.items() if pk not in redrives])
            if redrives:
                _attach({items[pk]: redrive for pk, redrive in redrives.items()})
                return [redrives[pk] for pk in items if pk in redrives]

    def _queue(self) -> str:
        """Name the dead-letter queue to give back to; "" for any other operation."""
        topic = self.operation.target_topic
        if self.operation.verb != Verb.GIVE_BACK or topic is None:
            return ""
        if not topic.dead_letter_queue:
            raise Refused(f"the topic {topic.name} has no dead-letter queue any more")
        return topic.dead_letter_queue

    def _mark(
        self, messages: Sequence[OutboundMessage], outcomes: Sequence[ports.Outcome]
    ) -> None:
        pairs = list(zip(messages, outcomes, strict=True))
        for _, outcome in pairs:
            if outcome.kind in _TRY_AGAIN:
                self.trouble = outcome.detail or "the broker did not answer"
        unsent = [message for message, outcome in pairs if is_unsent(message, outcome)]
        answers = [to_answer(*pair) for pair in pairs if not is_unsent(*pair)]
        with transaction.atomic():
            read_by_index()
            self._fence()
            poison.mark(
                poisons=[message.poison for message in messages],
                answers=answers,
                epoch=self.epoch,
                now=self.clock(),
            )
            _release(a.redrive for a in answers if a.outcome is not Outcome.UNKNOWN)
            self._withdraw(unsent)

    def _withdraw(self, unsent: Sequence[OutboundMessage]) -> None:
        """Let messages that no broker has wait again, without their redrive ids."""
        if unsent:
            withdrawn = poison.withdraw(
                poisons=[message.poison for message in unsent],
                redrives=[message.redrive for message in unsent],
                epoch=self.epoch,
            )
            _detach(withdrawn)

    def _give_up(self, messages: Sequence[OutboundMessage]) -> None:
        """Leave a window that was claimed but not published to the next run."""
        unsent = ports.Outcome(kind=ports.OutcomeKind.UNSENT, detail=self.trouble)
        if messages:
            self._mark(messages, [unsent] * len(messages))

    def _fence(self) -> None:
        """Raise LockLost if another run has started a newer epoch.

        The row lock is shared, so that one window can be claimed while another one is
        marked; a run that starts a new epoch waits for both.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT FROM triage_operation WHERE id = %s AND epoch = %s FOR SHARE",
                [self.operation.pk, self.epoch],
            )
            if not cursor.rowcount:
                raise LockLost

    def _release_answered(self) -> None:
        """Release items that a consumer has answered although the broker has not."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE triage_item SET held = false FROM poison_redrive"
                " WHERE poison_redrive.id = triage_item.redrive_id"
                " AND triage_item.operation_id = %s AND triage_item.held"
                " AND poison_redrive.outcome <> ALL(%s)",
                [self.operation.pk, list(IN_FLIGHT)],
            )

    @transaction.atomic
    def _end(self) -> SliceEnd:
        self._fence()
        self._release_answered()
        this = Operation.objects.filter(pk=self.operation.pk)
        if not self.operation.items.unfinished().exists():
            self._finish()
            return SliceEnd.DONE
        if not self.trouble:
            this.update(trouble="", troubles=0, retry_at=None)
            return SliceEnd.AGAIN
        _wait(self.operation, self.trouble, now=self.clock())
        return SliceEnd.LATER

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
                **audit_detail(self.operation),
                "for": self.operation.actor,
                "counts": {name: number for name, number in counts.items() if number},
                **single_message(self.operation.items.all(), self.operation.total),
            },
        )


class InlineExecutor(Executor):
    """Runs each call at once, in the caller's thread."""

    def submit(
        self, work: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[Result]:
        future = Future[Result]()
        future.set_result(work(*args, **kwargs))
        return future


@contextmanager
def _claim_executor() -> Iterator[Executor]:
    """Yield a thread that has a database connection of its own while it lives.

    No other connection sees what a caller's open transaction wrote: inside one, the
    calls run in the caller's thread.
    """
    if connection.in_atomic_block:
        yield InlineExecutor()
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="claim") as thread:
        try:
            yield thread
        finally:
            thread.submit(connections.close_all)


def _topic_id(message: OutboundMessage) -> TopicId:
    """Return the topic, within which order is kept: keys are not known."""
    return message.addressed.topic.pk


def _fit_in_window(rows: Iterable[tuple[Key, int]]) -> list[Key]:
    """Return the keys of the first (key, size) rows that fit into WINDOW_BYTES."""
    keys: list[Key] = []
    total = 0
    for key, size in rows:
        total += size
        if keys and total > WINDOW_BYTES:
            break
        keys.append(key)
    return keys


def _release(redrives: Iterable[uuid.UUID]) -> None:
    """Release the items whose redrive is no longer in flight."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE triage_item SET held = false"
            " WHERE redrive_id = ANY(%s::uuid[]) AND held",
            [array(redrives)],
        )


def _attach(redrives: dict[int, uuid.UUID]) -> None:
    with connection.cursor() as cursor:
        # The bounds keep Postgres from reading the whole table for a few items.
        cursor.execute(
            "UPDATE triage_item SET state = 'claimed', redrive_id = claim.redrive"
            " FROM unnest(%s::int8[], %s::uuid[]) AS claim(item, redrive)"
            " WHERE triage_item.id = claim.item AND triage_item.id BETWEEN %s AND %s",
            [
                *(array(redrives), array(redrives.values())),
                *(min(redrives), max(redrives)),
            ],
        )


def _detach(redrives: Iterable[uuid.UUID]) -> None:
    """Let the items of withdrawn redrives wait again; they stay held."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE triage_item SET state = 'waiting', redrive_id = NULL"
            " WHERE redrive_id = ANY(%s::uuid[]) AND state = 'claimed'",
            [array(redrives)],
        )


def _back_off(troubles: int) -> timedelta:
    """Compute full jitter with a floor (AWS Architecture Blog: back-off and jitter)."""
    ceiling = min(BACK_OFF_CAP, BACK_OFF_BASE * 2 ** min(troubles, 10))
    return timedelta(seconds=BACK_OFF_BASE + random.uniform(0, ceiling))  # noqa: S311
