"""Carry out an operation, in slices that survive a kill -9 at any instant.

A slice holds the operation's lock and works for some seconds. It first takes hold of
all items (`operation_item_judging`). Then it claims some in one transaction,
publishes them with no transaction open, and records the broker's answers together with
the next claim (`broker_send_claims`). It reads the next messages while those are
published.

After a crash the items of one claim may have been sent. The next run records them as
unknown, and sends them again under the same redrive ids.

A message that surely did not reach its broker, because the broker was away or turned it
away, waits again. Only what may have been sent is unknown.

People may pause, cancel and slow an operation at any time: each transaction of a run
reads what they want, and locks it until it ends. A thread of its own publishes, so that
a cancel need not wait until a broker answers or its time is up.

An operation that keeps order sends the next message of a topic only when the broker has
the one before. When the broker refuses a message, the rest of its topic is kept back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from django.db import connection, transaction
from django.db.models import F

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import adapter_contract
from apps.brokers.services.topics_and_routing_publisher import RoutingPublisher
from apps.core import advisory_locks, back_off
from apps.core.actor import Actor
from apps.core.advisory_locks import Lock
from apps.core.text_cleaning import storable
from apps.triage.errors import LockLost
from apps.triage.item_kinds import DatabaseAct
from apps.triage.models import WINDOW_SIZE, Operation, lock_name
from apps.triage.operation_states import SENDS, OperationState, Verb
from apps.triage.progress import counts_of, pace_from_here
from apps.triage.ramps import Ramp
from apps.triage.services import ramp_steps
from apps.triage.services.broker_send_claims import Windows
from apps.triage.services.give_back_target_queue import follow_queue
from apps.triage.services.helper_thread_with_own_connection import helper_thread
from apps.triage.services.operation_audit_details import (
    audit_detail,
    single_item_detail,
)
from apps.triage.services.operation_item_judging import judge_next
from apps.triage.services.ordered_sends import TRY_AGAIN, OrderedSends
from apps.triage.services.orphaned_operations_and_expired_rows import cancel_waits
from apps.triage.services.pacing import NO_LIMIT, Pacer, at_once
from apps.triage.services.preview_items import insert_selection
from apps.triage.services.redrive_message_building import OutboundMessage, ReadItems

log = logging.getLogger(__name__)

SLICE = timedelta(seconds=10)
BACK_OFF_BASE = 0.5
BACK_OFF_CAP = 30.0
RAMP_CHECKS_EVERY = timedelta(seconds=1)
# A cancel waits so long for a broker, in seconds from when it was handed the messages.
CANCEL_WAITS = 1.0
# In seconds; a slice looks as often for cancels of other operations.
CANCEL_CHECKS_EVERY = 0.25


Clock = Callable[[], datetime]
Outcomes = list[adapter_contract.PublishOutcome]


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
    most: int = WINDOW_SIZE,
) -> SliceEnd:
    """Work on an operation for one slice, unless another run already does.

    `most` is how many messages are claimed at once, at most.
    """
    with advisory_locks.attempt(lock_name(operation_id)) as operation_lock:
        if operation_lock is None:
            return SliceEnd.ELSEWHERE
        operation = _start_run(operation_id)
        if operation is None:
            return SliceEnd.DONE
        operation_run = OperationRun(
            operation, operation_lock, publisher, clock, most=most
        )
        try:
            return operation_run.run_slice()
        except LockLost:
            log.warning("operation %d was taken over by another run", operation_id)
            return SliceEnd.ELSEWHERE
        except Exception as error:
            _store_wait(operation, f"{type(error).__name__}: {error}", now=clock())
            raise


def _start_run(operation_id: int) -> Operation | None:
    """Start a new run of an operation, fencing any other; None if unwanted."""
    this = Operation.objects.of_this_release().filter(pk=operation_id)
    began = this.transition(to=OperationState.RUNNING, run=F("run") + 1)
    if not began:
        began = this.filter(state=OperationState.CANCELLING).update(run=F("run") + 1)
    return this.select_related("target_topic").get() if began else None


def _store_wait(operation: Operation, trouble: str, *, now: datetime) -> None:
    """Store why an operation that is not paused waits, and when it is tried again."""
    same = Operation.objects.filter(pk=operation.pk, run=operation.run).exclude(
        state=OperationState.PAUSED
    )
    delay = back_off.delay(operation.troubles, base=BACK_OFF_BASE, cap=BACK_OFF_CAP)
    same.update(
        trouble=storable(trouble, limit=500),
        troubles=operation.troubles + 1,
        retry_at=now + timedelta(seconds=delay),
    )


class OperationRun:
    """One run of an operation, under its lock and a number of its own."""

    def __init__(
        self,
        operation: Operation,
        operation_lock: Lock,
        publisher: RoutingPublisher,
        clock: Clock,
        *,
        most: int,
    ) -> None:
        self.operation = operation
        self.most = most
        self.lock = operation_lock
        self.publisher = publisher
        self.clock = clock
        self.until = clock() + SLICE
        self._put_off_look_for_cancels()
        self.trouble = ""
        self.ramp_waits_for = ""
        # Messages that may still be claimed in this slice.
        self.room = NO_LIMIT
        self.windows = Windows(operation)
        self.cancelled = False

    def run_slice(self) -> SliceEnd:
        """Hold, send or decide items until the time is up; return how it ended."""
        sends = self.operation.verb in SENDS
        if sends and self.operation.run > 1:
            self.windows.take_over(now=self.clock())
        if self.operation.state == OperationState.CANCELLING:
            return self._cancel()
        if not self.operation.taken:
            self._insert_undo_items()
        while self._has_time() and judge_next(self.operation, now=self.clock()):
            pass
        if self.operation.judged == self.operation.total:
            self._act()
        if self.cancelled:
            return SliceEnd.DONE
        return self._end_slice() or self._cancel()

    def _act(self) -> None:
        """Send the run's held messages to brokers, or act on them in the database."""
        verb = Verb(self.operation.verb)
        act = self.windows.kind.database_acts.get(verb)
        if act is not None:
            self._act_in_database(act)
        elif verb.value in SENDS:
            if verb is Verb.GIVE_BACK:
                follow_queue(self.operation)
            self._climb()
            self._send()

    def _act_in_database(self, act: DatabaseAct) -> None:
        """Act on items in the database until time is up or none is left."""
        pacer = Pacer(lambda: self.windows.rate)
        goes_on = True
        while goes_on and self._has_time():
            most = min(self.most, at_once(self.windows.rate), act.most)
            pacer.wait(most)
            goes_on = self.windows.act_next(act, most=most, now=self.clock())

    @transaction.atomic
    def _insert_undo_items(self) -> None:
        """Insert the items of an undo that was too large for its request.

        It locks the operation last, and looks for a newer run: until then, people may
        pause or cancel the operation.
        """
        insert_selection(self.operation, now=self.clock())
        self.windows.require_fence()
        self.operation.refresh_from_db()

    def _climb(self) -> None:
        """Ask the operation's ramp how many messages may be sent now.

        Stores why the ramp waits; it may pause the operation. Without a ramp nothing is
        done.
        """
        if self.operation.ramp is None:
            return
        ramp = Ramp.from_json(self.operation.ramp)
        check = ramp_steps.climb(self.operation, ramp, now=self.clock())
        self.room, self.ramp_waits_for = check.room, check.waits_for

    def _has_time(self) -> bool:
        """Tell whether the slice goes on; raise LockLost if the lock is gone."""
        self._require_lock()
        return not self._must_end()

    def _must_end(self) -> bool:
        """Tell whether a slice's time is up: also once a cancel waits for a worker.

        The cancel of an operation that no process runs would wait for the whole slice.
        """
        now = self.clock()
        if now >= self.next_look_for_cancels:
            self._put_off_look_for_cancels()
            if cancel_waits(now=now):
                self.until = now
        return now >= self.until

    def _put_off_look_for_cancels(self) -> None:
        """Set when the slice looks for cancels; until then it gets on with its work."""
        pause = timedelta(seconds=CANCEL_CHECKS_EVERY)
        self.next_look_for_cancels = self.clock() + pause

    def _require_lock(self) -> None:
        """Raise LockLost if another run may have begun."""
        if self.lock.lost():
            raise LockLost

    def _send(self) -> None:
        """Send an operation's messages, claim by claim.

        It ends when time is up, or a broker is away.
        """
        ordered_sends = (
            OrderedSends(self.operation, self.publisher)
            if self.operation.ordered
            else None
        )
        pacer = Pacer(lambda: self.windows.rate)
        with helper_thread("publish") as sender:
            messages = self.windows.claim(self._read(0))
            while messages:
                self._require_lock()
                claimed_at = self.clock()
                self.room -= len(messages)
                pacer.wait(len(messages))
                publishing = sender.submit(self._publish, messages, ordered_sends)
                record = partial(
                    self._record, messages, publishing, claimed_at=claimed_at
                )
                try:
                    # While they are published.
                    following = self._read(messages[-1].item + 1)
                    messages = record(following=following)
                except LockLost:
                    raise
                except Exception:
                    # Whatever hinders the next claim, these messages were sent. The
                    # session may have ended while it read.
                    connection.close_if_unusable_or_obsolete()
                    record(following=ReadItems())
                    raise

    def _record(
        self,
        messages: Sequence[OutboundMessage],
        publishing: Future[Outcomes],
        *,
        claimed_at: datetime,
        following: ReadItems,
    ) -> Sequence[OutboundMessage]:
        """Await brokers' answers to an operation's messages, and record them.

        Returns the messages that are to be sent next.
        """
        self._await_or_cancel(publishing)
        outcomes = publishing.result()
        self._note_trouble(outcomes)
        return self.windows.record(
            messages,
            outcomes,
            claimed_at=claimed_at,
            now=self.clock(),
            following=following if self._goes_on() else ReadItems(),
        )

    def _read(self, after: int) -> ReadItems:
        """Read the next messages to send, fewer the lower the rate is."""
        most = min(self.most, at_once(self.windows.rate), self.room)
        if not most:
            return ReadItems()
        return self.windows.read(after=after, most=most, now=self.clock())

    def _goes_on(self) -> bool:
        """Tell whether an operation sends more: there is time, no broker is away."""
        return not (self.cancelled or self.trouble or self._must_end())

    def _await_or_cancel(self, publishing: Future[Outcomes]) -> None:
        """Wait until an operation's messages are published, or it is cancelled before.

        A broker that does not answer may still take them: they are unknown then, and
        its answer is recorded if it comes after all.
        """
        pause = CANCEL_WAITS
        while wait([publishing], timeout=pause).not_done:
            pause = CANCEL_CHECKS_EVERY
            this = Operation.objects.filter(pk=self.operation.pk)
            if this.filter(state=OperationState.CANCELLING).exists():
                self.windows.take_over(now=self.clock())
                self._cancel()
                self.cancelled = True
                wait([publishing])

    def _publish(
        self, messages: Sequence[OutboundMessage], ordered_sends: OrderedSends | None
    ) -> Outcomes:
        """Publish messages to their brokers, in order if the operation keeps it."""
        if ordered_sends is not None:
            return ordered_sends.publish(messages)
        return self.publisher.publish([each.addressed for each in messages])

    def _note_trouble(self, outcomes: Outcomes) -> None:
        """Remember why a broker did not answer; the operation tries again later."""
        for outcome in outcomes:
            if outcome.kind in TRY_AGAIN:
                self.trouble = outcome.detail or "the broker did not answer"

    def _cancel(self) -> SliceEnd:
        """Free all held items, window by window; end the operation as cancelled."""
        while self.windows.free_next_window(now=self.clock()):
            self._require_lock()
        with transaction.atomic():
            self.windows.require_fence()
            self._finish(OperationState.CANCELLED, Action.OPERATION_CANCELLED)
        return SliceEnd.DONE

    @transaction.atomic
    def _end_slice(self) -> SliceEnd | None:
        """End an operation with nothing left, else store when to go on.

        None for one that is to be cancelled. Another slice would wait for a free worker
        first, while the cancel is not over.
        """
        orders = self.windows.require_fence()
        this = Operation.objects.filter(pk=self.operation.pk)
        if orders.state is OperationState.CANCELLING:
            return None
        if self.operation.judged == self.operation.total and self.windows.all_done():
            self._finish(OperationState.DONE, Action.OPERATION_FINISHED)
            return SliceEnd.DONE
        if self.trouble:
            _store_wait(self.operation, self.trouble, now=self.clock())
            return SliceEnd.LATER
        if self.ramp_waits_for and orders.may_go_on:
            this.update(
                trouble=f"The ramp {self.ramp_waits_for}.",
                troubles=0,
                retry_at=self.clock() + RAMP_CHECKS_EVERY,
            )
            return SliceEnd.LATER
        waited = self.operation.troubles > 0
        pace = pace_from_here(self.operation, now=self.clock()) if waited else {}
        this.update(trouble="", troubles=0, retry_at=None, **pace)
        return SliceEnd.AGAIN if orders.may_go_on else SliceEnd.LATER

    def _finish(self, state: OperationState, action: Action) -> None:
        """Set the operation to its final state, and audit its counts."""
        now = self.clock()
        Operation.objects.filter(pk=self.operation.pk).transition(
            to=state, finished_at=now, trouble="", troubles=0, retry_at=None
        )
        counts = counts_of(self.operation)
        audit.record(
            action=action,
            subject=f"operation:{self.operation.pk}",
            actor=Actor.system("worker"),
            now=now,
            detail={
                **audit_detail(self.operation),
                "for": self.operation.actor,
                "counts": {name: number for name, number in counts.items() if number},
                **single_item_detail(self.operation),
            },
        )
