"""Delivers what is due at one endpoint, as long as this process owns the endpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from time import monotonic
from typing import TypeVar

from apps.core import back_off
from apps.core.bounded_threads import BoundedThreads
from apps.redelivery.calls import ClaimedDelivery, EndedAttempt
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound.http_caller import HttpCaller
from apps.redelivery.sending import delivery_call
from apps.redelivery.sending.call_pace import CallPace
from apps.redelivery.sending.database_threads import POSTGRES_AWAY, RunsWork
from apps.redelivery.sending.delivery_call import DeliveryCall
from apps.redelivery.sending.result_recorder import ResultRecorder
from apps.redelivery.services import claims, forwarding, results
from apps.redelivery.services.claims import EndpointTaken
from apps.redelivery.services.pending_work import PendingWork
from apps.redelivery.states import AttemptOutcome
from poisonguard.errors import GuardError, Stopping
from poisonguard.locks import LockGrant, LockServer, ResourceLock

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 1.0
# While calls run, as long is waited for others to end, so that one claim serves many.
GATHER_SECONDS = 0.01
RESCUED_AT_ONCE = 200
FORWARDED_AT_ONCE = 100
# The search for expired deliveries may read all that are due: it is allowed so much of
# the time.
EXPIRY_SHARE = 0.05
# Of the bodies of all calls that run in this process.
MOST_BYTES_IN_FLIGHT = 256 * 2**20
# Seconds that are left to record what was called, when the process ends.
RECORD_SECONDS = 5.0
BACK_OFF_BASE, BACK_OFF_CAP = 0.5, 5.0


@dataclass(kw_only=True, slots=True)
class SenderTools:
    """What the senders of all endpoints of a process share.

    `waits` has a thread for each endpoint that waits for its lock, and `errands` the
    few that ask for locks and return them. A broker may hang a thread of `publishers`.
    """

    threads: RunsWork
    caller: HttpCaller
    locks: LockServer
    waits: Executor
    errands: Executor
    publishers: BoundedThreads
    clock: Callable[[], datetime]
    bytes_in_flight: int = field(default=0)


class EndpointSender:
    """Waits for the lock of an endpoint, and then delivers what is due there."""

    def __init__(self, endpoint: Endpoint, tools: SenderTools) -> None:
        self.endpoint = endpoint
        self.grant: LockGrant | None = None
        self._tools = tools
        self._lock = ResourceLock(f"endpoint:{endpoint.pk}", tools.locks)
        self._recorder = ResultRecorder(
            threads=tools.threads,
            endpoint=lambda: self.endpoint,
            clock=tools.clock,
            on_recorded=self._note_record,
        )
        self._pace = CallPace()
        self._calls: set[asyncio.Task[None]] = set()
        self._late_answers: set[asyncio.Task[None]] = set()
        self._forwards: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._claiming = asyncio.Lock()
        self._is_due = False
        self._next_due: datetime | None = None
        self._work = PendingWork()
        self._search_expired_at = 0.0

    async def run(self) -> None:
        """Deliver whenever this process owns the endpoint, until `stop`."""
        troubles = 0
        while not self._is_stopping:
            try:
                self.grant = await _in_thread(self._tools.waits, self._acquire)
            except Stopping:
                return
            except GuardError as trouble:
                troubles += 1
                log.warning("%s waits for its lock: %s", self.endpoint, trouble)
                await self._pause(troubles)
                continue
            troubles = 0
            log.info("%s is ours, by fence %d", self.endpoint, self.grant.fence)
            try:
                await self._deliver_while_owned(self.grant)
            finally:
                await self._release()

    async def stop(self, *, seconds: float) -> None:
        """Begin no call any more; let those that run end, and record them."""
        self._is_stopping = True
        self._wake.set()
        until = monotonic() + seconds
        with suppress(TimeoutError):
            # What a thread claims at this moment is called too.
            async with asyncio.timeout(seconds), self._claiming:
                pass
        running = {*self._calls} | ({self._forwards} if self._forwards else set())
        if running:
            await asyncio.wait(running, timeout=max(0.0, until - monotonic()))
        for task in (*self._late_answers, *self._calls):
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        await self._recorder.finish(seconds=RECORD_SECONDS)
        await _in_thread(self._tools.errands, self._lock.destroy)

    def lose(self) -> None:
        """Begin no call any more: another process may own the endpoint."""
        log.warning("%s is not ours any more: its lock is lost", self.endpoint)
        self.grant = None
        self._wake.set()

    def wake(self) -> None:
        """Look at once for what is due."""
        self._is_due = True
        self._wake.set()

    def update(self, endpoint: Endpoint, work: PendingWork) -> None:
        """Take the settings and the work that were read just now."""
        self.endpoint = endpoint
        self._work = work
        self._next_due = work.next_due
        self._wake.set()

    def _acquire(self) -> LockGrant:
        grant = self._lock.acquire()
        assert grant is not None  # noqa: S101 - there is no time-out
        return grant

    async def _release(self) -> None:
        """Give the lock back; at a stop, once all calls are recorded."""
        if self._is_stopping:
            if self._calls:
                await asyncio.wait(self._calls)
            await self._recorder.finish(seconds=RECORD_SECONDS)
        grant, self.grant = self.grant, None
        if grant is not None:
            await _in_thread(self._tools.errands, grant.release)

    async def _deliver_while_owned(self, grant: LockGrant) -> None:
        self._is_due, self._pace, troubles = True, CallPace(), 0
        while self.grant is grant and not self._is_stopping:
            try:
                await self._tidy()
                await self._claim(grant.fence)
            except EndpointTaken:
                log.warning("%s: a newer sender owns it", self.endpoint)
                return
            except POSTGRES_AWAY as away:
                troubles += 1
                log.warning("%s waits for Postgres: %s", self.endpoint, away)
                await self._pause(troubles)
            except Exception:
                troubles += 1
                log.exception("%s: its deliveries wait", self.endpoint)
                await self._pause(troubles)
            else:
                troubles = 0
                await self._wait()

    async def _tidy(self) -> None:
        """Rescue what a dead sender left, end what has expired, forward."""
        work, self._work = self._work, PendingWork()
        now = self._tools.clock()
        # Results that wait for Postgres are better than what a rescue would assume.
        if _is_past(work.next_claim_end, now) and self._recorder.is_idle:
            await self._repeat(results.rescue)
        if _is_past(work.next_due, now):
            self._is_due = True
            await self._end_expired()
        if work.has_forwards and self._forwards is None:
            self._forwards = asyncio.create_task(self._forward())

    async def _end_expired(self) -> None:
        began = monotonic()
        if began < self._search_expired_at:
            return
        await self._repeat(results.end_expired)
        took = monotonic() - began
        self._search_expired_at = monotonic() + took / EXPIRY_SHARE

    async def _repeat(self, service: Callable[..., int]) -> None:
        """Call a service that does a part each time, until there is no more."""
        done = RESCUED_AT_ONCE
        while done == RESCUED_AT_ONCE and not self._is_stopping:
            work = partial(
                service,
                endpoint=self.endpoint,
                most=RESCUED_AT_ONCE,
                now=self._tools.clock(),
            )
            done = await self._tools.threads.run(work)
            self._is_due = True

    async def _claim(self, fence: int) -> None:
        """Claim what is due, as far as there is room, and call."""
        room = self._room()
        if not (self._is_due and room and self.endpoint.is_enabled):
            return
        room = await self._gather(room)
        async with self._claiming:
            if self._is_stopping:
                return
            self._is_due = False
            claimed = await self._tools.threads.run(
                partial(
                    claims.claim,
                    endpoint=self.endpoint,
                    fence=fence,
                    most=room,
                    now=self._tools.clock(),
                )
            )
            for delivery in claimed:
                self._begin(delivery)
        self._pace.begin(len(claimed))
        if len(claimed) == room or _size_of(claimed) >= claims.MOST_BYTES:
            self._is_due = True

    async def _gather(self, room: int) -> int:
        """Wait a moment for half of the calls to end; return the room by then."""
        until = monotonic() + GATHER_SECONDS
        while (
            self._calls
            and not self._is_stopping
            and room <= self._pace.window // 2
            and self.endpoint.rate is None
            and (seconds := until - monotonic()) > 0
        ):
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
            room = self._room()
        return room

    def _room(self) -> int:
        """Return how many calls may begin now."""
        is_full = self._tools.bytes_in_flight >= MOST_BYTES_IN_FLIGHT
        if is_full or self._recorder.is_behind:
            return 0
        self._pace.limit_window(self.endpoint.concurrency)
        return self._pace.room(
            in_flight=len(self._calls),
            concurrency=self.endpoint.concurrency,
            rate=self.endpoint.rate,
            now=monotonic(),
        )

    async def _wait(self) -> None:
        """Wait until there is something to do, and a second at most."""
        if self._is_due and self.endpoint.is_enabled and self._room():
            return
        seconds = LOOK_SECONDS
        if self._next_due is not None:
            until_due = (self._next_due - self._tools.clock()).total_seconds()
            seconds = min(seconds, max(until_due, 0.0))
        if self._is_due and self.endpoint.rate:
            seconds = min(seconds, self._pace.seconds_to_token(self.endpoint.rate))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()
        if _is_past(self._next_due, self._tools.clock()):
            self._is_due, self._next_due = True, None

    def _begin(self, delivery: ClaimedDelivery) -> None:
        task = asyncio.create_task(self._call(delivery))
        self._calls.add(task)
        task.add_done_callback(self._end)
        self._tools.bytes_in_flight += len(delivery.body)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._wake.set()

    async def _call(self, delivery: ClaimedDelivery) -> None:
        """Call, and hand over what it gave."""
        now = self._tools.clock()
        call = await delivery_call.call(
            self._tools.caller, self.endpoint, delivery, now=now
        )
        self._tools.bytes_in_flight -= len(delivery.body)
        self._pace.end(
            is_success=call.result.outcome is AttemptOutcome.SUCCEEDED,
            outage=self.endpoint.breaker_failures,
        )
        self._recorder.add(
            EndedAttempt(
                delivery=delivery.id,
                claim=delivery.claim,
                attempt=delivery.attempt,
                ended_at=self._tools.clock(),
                result=call.result,
            )
        )
        if call.late_answer is not None:
            task = asyncio.create_task(self._await_late_answer(delivery, call))
            self._late_answers.add(task)
            task.add_done_callback(self._late_answers.discard)

    async def _await_late_answer(
        self, delivery: ClaimedDelivery, call: DeliveryCall
    ) -> None:
        """Keep what the back end still answers after the time limit."""
        late = await call.late_answer() if call.late_answer is not None else None
        if late is None:
            return
        work = partial(
            results.keep_late_answer,
            delivery=delivery.id,
            number=delivery.attempt,
            result=delivery_call.of_late_answer(late),
            now=self._tools.clock(),
        )
        try:
            await self._tools.threads.run(work)
        except POSTGRES_AWAY as away:
            log.warning("the late answer to delivery %s is lost: %s", delivery.id, away)

    def _note_record(self) -> None:
        """Look again where a recorded result may let others go: ordered ones, or all.

        The first success closes the breaker; the slow start is at work then.
        """
        if self.endpoint.order_header or (
            self._pace.window <= self.endpoint.concurrency // 2
        ):
            self._is_due = True
        self._wake.set()

    async def _forward(self) -> None:
        """Send to the endpoint's topic what is not tried again."""
        try:
            while await self._forward_some() and not self._is_stopping:
                self._is_due = True
        except POSTGRES_AWAY as away:
            log.warning("%s: nothing can be forwarded: %s", self.endpoint, away)
        finally:
            self._forwards = None
            self._wake.set()

    async def _forward_some(self) -> bool:
        """Forward a batch; tell whether there may be more to forward now."""
        run, endpoint = self._tools.threads.run, self.endpoint
        batch = await run(
            partial(forwarding.next_forwards, endpoint=endpoint, most=FORWARDED_AT_ONCE)
        )
        sending = self._tools.publishers.start(partial(forwarding.publish, batch))
        if not batch or sending is None:
            return False
        outcomes = await asyncio.wrap_future(sending)
        ended = await run(
            partial(
                forwarding.record_forwards,
                endpoint=endpoint,
                outcomes=list(zip(batch, outcomes, strict=True)),
                now=self._tools.clock(),
            )
        )
        return ended == len(batch)

    async def _pause(self, troubles: int) -> None:
        """Wait after a trouble, but not beyond a stop."""
        until = monotonic() + back_off.delay(
            troubles, base=BACK_OFF_BASE, cap=BACK_OFF_CAP
        )
        while not self._is_stopping and (seconds := until - monotonic()) > 0:
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)


async def _in_thread(executor: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)


def _is_past(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment <= now


def _size_of(claimed: Sequence[ClaimedDelivery]) -> int:
    return sum(len(delivery.body) for delivery in claimed)
