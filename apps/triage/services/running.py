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
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import transaction
from django.db.models import F

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import ports
from apps.brokers.services.topics import RoutingPublisher
from apps.core import back_off, lock
from apps.core.actor import Actor
from apps.core.lock import Lock
from apps.core.sql import read_by_index
from apps.core.text import storable
from apps.poison import services as poison
from apps.poison.states import RedriveOutcome
from apps.triage.errors import LockLost
from apps.triage.models import Operation, lock_name
from apps.triage.services import item_states
from apps.triage.services.audit_details import audit_detail, single_message
from apps.triage.services.claim_executor import claim_executor
from apps.triage.services.fencing import fence
from apps.triage.services.ordered_sends import TRY_AGAIN, OrderedSends
from apps.triage.services.outbound import (
    ClaimedWindow,
    OutboundMessage,
    is_unsent,
    to_answer,
)
from apps.triage.services.windows import WINDOW, Clock, Windows
from apps.triage.states import SENDS, ItemState, OperationState, Verb

log = logging.getLogger(__name__)

SLICE = timedelta(seconds=10)
MANY = 5_000
BACK_OFF_BASE = 0.5
BACK_OFF_CAP = 30.0


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
    with lock.attempt(lock_name(operation_id)) as operation_lock:
        if operation_lock is None:
            return SliceEnd.ELSEWHERE
        operation = _start_epoch(operation_id)
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
            _store_wait(operation, f"{type(error).__name__}: {error}", now=clock())
            raise


def _start_epoch(operation_id: int) -> Operation | None:
    """Start a new epoch: it fences off any run that writes under an older one."""
    this = Operation.objects.filter(pk=operation_id)
    if not this.transition(to=OperationState.RUNNING, epoch=F("epoch") + 1):
        return None
    return this.get()


def _store_wait(operation: Operation, trouble: str, *, now: datetime) -> None:
    """Store why the operation waits, and when it is tried again."""
    same = Operation.objects.filter(pk=operation.pk, epoch=operation.epoch)
    delay = back_off.delay(operation.troubles, base=BACK_OFF_BASE, cap=BACK_OFF_CAP)
    same.update(
        trouble=storable(trouble, limit=500),
        troubles=operation.troubles + 1,
        retry_at=now + timedelta(seconds=delay),
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
        self.lock = operation_lock
        self.publisher = publisher
        self.clock = clock
        self.until = clock() + SLICE
        self.trouble = ""

    def run_slice(self) -> SliceEnd:
        """Send or decide items until the time is up; return how it ended."""
        item_states.release_answered(self.operation.pk)
        if self.operation.verb in SENDS:
            self._redrive()
        else:
            self._decide()
        return self._end_slice()

    # Drop and restore: nothing but the database, in large windows.

    def _decide(self) -> None:
        """Drop or restore items, window by window, until the time is up."""
        while self.clock() < self.until and self._decide_window():
            pass

    @transaction.atomic
    def _decide_window(self) -> bool:
        """Drop or restore some items; return False when none waits."""
        read_by_index()
        fence(self.operation)
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
        item_states.settle([items[pk] for pk in decided], state)
        item_states.skip([item for pk, item in items.items() if pk not in decided])
        return True

    # Redrive: claim, publish, mark; a thread claims the next window meanwhile.

    def _redrive(self) -> None:
        """Send messages, window by window, until time is up or a broker is away."""
        windows = Windows(self.operation, self.lock, self.clock, size=self.window)
        ordered_sends = (
            OrderedSends(self.operation, self.publisher)
            if self.operation.ordered
            else None
        )
        with claim_executor() as executor:
            claim = executor.submit(windows.claim)
            while messages := claim.result().pack():
                claim = executor.submit(self._claim_following, windows)
                self._store_outcomes(messages, self._publish(messages, ordered_sends))
                # A broker that is away is not asked again before the back-off is over.
                if self.trouble:
                    self._give_up(claim.result().pack())
                    return

    def _claim_following(self, windows: Windows) -> ClaimedWindow:
        """Claim the next window; an empty one if the time is up."""
        return windows.claim() if self.clock() < self.until else ClaimedWindow()

    def _publish(
        self, messages: Sequence[OutboundMessage], ordered_sends: OrderedSends | None
    ) -> list[ports.PublishOutcome]:
        """Publish messages, in order if that was asked for; return outcomes."""
        if ordered_sends is not None:
            return ordered_sends.publish(messages)
        return self.publisher.publish([each.addressed for each in messages])

    def _store_outcomes(
        self,
        messages: Sequence[OutboundMessage],
        outcomes: Sequence[ports.PublishOutcome],
    ) -> None:
        """Store the outcomes of a window in one transaction; note any trouble."""
        pairs = list(zip(messages, outcomes, strict=True))
        for _, outcome in pairs:
            if outcome.kind in TRY_AGAIN:
                self.trouble = outcome.detail or "the broker did not answer"
        unsent = [message for message, outcome in pairs if is_unsent(message, outcome)]
        answers = [to_answer(*pair) for pair in pairs if not is_unsent(*pair)]
        with transaction.atomic():
            read_by_index()
            fence(self.operation)
            poison.mark(
                poisons=[message.poison for message in messages],
                answers=answers,
                epoch=self.operation.epoch,
                now=self.clock(),
            )
            item_states.release(
                a.redrive for a in answers if a.outcome is not RedriveOutcome.UNKNOWN
            )
            self._withdraw(unsent)

    def _withdraw(self, unsent: Sequence[OutboundMessage]) -> None:
        """Let messages that no broker has wait again, without their redrive ids."""
        if unsent:
            withdrawn = poison.withdraw(
                poisons=[message.poison for message in unsent],
                redrives=[message.redrive for message in unsent],
                epoch=self.operation.epoch,
            )
            item_states.detach(withdrawn)

    def _give_up(self, messages: Sequence[OutboundMessage]) -> None:
        """Leave a window that was claimed but not published to the next run."""
        unsent = ports.PublishOutcome(
            kind=ports.OutcomeKind.UNSENT, detail=self.trouble
        )
        if messages:
            self._store_outcomes(messages, [unsent] * len(messages))

    @transaction.atomic
    def _end_slice(self) -> SliceEnd:
        """Finish the operation if nothing is left, else store when to go on."""
        fence(self.operation)
        item_states.release_answered(self.operation.pk)
        this = Operation.objects.filter(pk=self.operation.pk)
        if not self.operation.items.unfinished().exists():
            self._finish()
            return SliceEnd.DONE
        if not self.trouble:
            this.update(trouble="", troubles=0, retry_at=None)
            return SliceEnd.AGAIN
        _store_wait(self.operation, self.trouble, now=self.clock())
        return SliceEnd.LATER

    def _finish(self) -> None:
        """Set the operation to done and audit its counts."""
        now = self.clock()
        Operation.objects.filter(pk=self.operation.pk).transition(
            to=OperationState.DONE,
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
