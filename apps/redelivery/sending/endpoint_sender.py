"""Deliver what is due at one endpoint, as long as this process owns the endpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from datetime import datetime
from functools import partial
from time import monotonic
from typing import TypeVar

from apps.core import back_off
from apps.redelivery.models import Endpoint
from apps.redelivery.sending.calls_and_claims_ahead import CallsUnderWay, size_of
from apps.redelivery.sending.database_threads import POSTGRES_AWAY
from apps.redelivery.sending.result_recorder import ResultRecorder
from apps.redelivery.sending.shared_sender_resources import SharedSenderResources
from apps.redelivery.sending.unsuccessful_delivery_forwarding import TopicForwarding
from apps.redelivery.services import attempt_results, delivery_claims
from apps.redelivery.services.delivery_claims import EndpointTaken
from apps.redelivery.services.pending_sender_work import PendingWork
from poisonguard.errors import GuardError, Stopping
from poisonguard.locks import LockGrant, ResourceLock

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 1.0
# While calls run, as long is waited for others to end, so that one claim serves many.
GATHER_SECONDS = 0.01
RESCUED_AT_ONCE = 200
# The search for expired deliveries may read all that are due: it is allowed so much of
# the time.
EXPIRY_SHARE = 0.05
# Seconds that are left to record what was called, when the process ends.
RECORD_SECONDS = 5.0
BACK_OFF_BASE, BACK_OFF_CAP = 0.5, 5.0


class EndpointSender:
    """Wait for the lock of an endpoint, and then deliver what is due there."""

    def __init__(self, endpoint: Endpoint, tools: SharedSenderResources) -> None:
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
        self._calls = CallsUnderWay(
            tools, lambda: self.endpoint, self._recorder, on_room=self._note_room
        )
        self._forwarding = TopicForwarding(
            tools, lambda: self.endpoint, on_change=self.wake
        )
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._claiming = asyncio.Lock()
        self._is_due = False
        self._next_due: datetime | None = None
        self._work = PendingWork()
        self._search_expired_at = 0.0

    async def run(self) -> None:
        """Send an endpoint's deliveries whenever this process owns it, until `stop`."""
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
                self._calls.give_back()
                await self._release()

    async def stop(self, *, seconds: float) -> None:
        """Begin no call of the endpoint any more; record the calls that still run.

        It waits at most so many seconds for them to end.
        """
        self._is_stopping = True
        self._wake.set()
        self._forwarding.stop()
        self._calls.give_back()
        until = monotonic() + seconds
        with suppress(TimeoutError):
            # What a thread claims at this moment is called too, if there is room.
            async with asyncio.timeout(seconds), self._claiming:
                pass
        self._calls.stop()
        await self._calls.finish(seconds=until - monotonic())
        if forwarding := self._forwarding.tasks:
            await asyncio.wait(forwarding, timeout=max(0.0, until - monotonic()))
        await self._recorder.finish(seconds=RECORD_SECONDS)
        await _in_thread(self._tools.errands, self._lock.destroy)

    def lose(self) -> None:
        """Begin no call of the endpoint any more: another process may own it.

        Its lock is lost. Claimed deliveries that were not called are given back.
        """
        log.warning("%s is not ours any more: its lock is lost", self.endpoint)
        self.grant = None
        self._calls.give_back()
        self._wake.set()

    def wake(self) -> None:
        """Look at once for due deliveries of the endpoint."""
        self._is_due = True
        self._wake.set()

    def update(self, endpoint: Endpoint, work: PendingWork) -> None:
        """Take the endpoint's settings and pending work that were read just now.

        An endpoint that is not enabled any more gives its claimed deliveries back.
        """
        self.endpoint = endpoint
        if not endpoint.is_enabled:
            self._calls.give_back()
        self._work = work
        self._next_due = work.next_due
        self._wake.set()

    def _acquire(self) -> LockGrant:
        grant = self._lock.acquire()
        assert grant is not None  # noqa: S101 - there is no time-out
        return grant

    async def _release(self) -> None:
        """Release the endpoint's lock; at a stop, once all calls are recorded."""
        if self._is_stopping:
            await self._calls.wait()
            await self._recorder.finish(seconds=RECORD_SECONDS)
        grant, self.grant = self.grant, None
        if grant is not None:
            await _in_thread(self._tools.errands, grant.release)

    async def _deliver_while_owned(self, grant: LockGrant) -> None:
        self._is_due, troubles = True, 0
        self._calls.begin_slowly()
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
        """Rescue a dead sender's deliveries, end expired ones, forward ended ones."""
        work, self._work = self._work, PendingWork()
        now = self._tools.clock()
        # Results that wait for Postgres are better than what a rescue would assume.
        if _is_past(work.next_claim_end, now) and self._recorder.is_idle:
            await self._repeat(attempt_results.end_orphaned_attempts)
        if _is_past(work.next_due, now):
            self._is_due = True
            await self._end_expired()
        if work.has_forwards:
            self._forwarding.begin()

    async def _end_expired(self) -> None:
        began = monotonic()
        if began < self._search_expired_at:
            return
        await self._repeat(attempt_results.end_expired)
        took = monotonic() - began
        self._search_expired_at = monotonic() + took / EXPIRY_SHARE

    async def _repeat(self, service: Callable[..., int]) -> None:
        """Call a service on the sender's endpoint until it finds no more deliveries.

        The service handles some of them each time. It is not called after a stop.
        """
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
        """Claim the endpoint's due deliveries, and begin their calls.

        It claims as many as may begin, and some ahead.
        """
        self._calls.give_back_old()
        if not self._may_claim():
            return
        await self._await_room()
        async with self._claiming:
            most, ahead = self._calls.numbers_to_claim()
            if self._is_stopping or not most + ahead:
                return
            self._is_due, began = False, monotonic()
            claimed = await self._tools.threads.run(
                partial(
                    delivery_claims.claim,
                    endpoint=self.endpoint,
                    fence=fence,
                    most=most,
                    ahead=ahead,
                    now=self._tools.clock(),
                )
            )
            self._calls.claim_seconds = monotonic() - began
            self._calls.add(claimed)
        if self.grant is None:
            self._calls.give_back()
        # Fewer than it asked for may be all there is, or all that may be claimed ahead.
        is_full = (
            len(claimed) == most + ahead
            or size_of(claimed) >= delivery_claims.MOST_BYTES
        )
        self._calls.claims_ahead = is_full
        if is_full or ahead:
            self._is_due = True

    def _may_claim(self) -> bool:
        return (
            self._is_due
            and self.endpoint.is_enabled
            and any(self._calls.numbers_to_claim())
        )

    async def _await_room(self) -> None:
        """Wait a moment for half of the endpoint's calls to end.

        So one claim serves many. Not where the endpoint has a rate, or where deliveries
        are claimed ahead: then no call waits.
        """
        half = self._calls.pace.window // 2 + 1
        if self.endpoint.rate is not None or not self._calls.tasks:
            return
        until = monotonic() + GATHER_SECONDS
        while (
            not self._is_stopping
            and self._calls.numbers_to_claim()[1] == 0
            and self._calls.room() < half
            and (seconds := until - monotonic()) > 0
        ):
            self._calls.room_wanted = half
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        self._calls.room_wanted = 1

    async def _wait(self) -> None:
        """Wait until the endpoint has something due, and a second at most."""
        if self._may_claim():
            return
        seconds = LOOK_SECONDS
        if self._next_due is not None:
            until_due = (self._next_due - self._tools.clock()).total_seconds()
            seconds = min(seconds, max(until_due, 0.0))
        if self._is_due and self.endpoint.rate:
            seconds = min(
                seconds, self._calls.pace.seconds_to_token(self.endpoint.rate)
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()
        if _is_past(self._next_due, self._tools.clock()):
            self._is_due, self._next_due = True, None

    def _note_room(self) -> None:
        """Wake the sender to claim more where calls have ended and more is due."""
        if self._is_due:
            self._wake.set()

    def _note_record(self) -> None:
        """Wake the sender after a recorded result, which may let other deliveries go.

        These are those behind it in order, or all: the first success closes the
        breaker, and the slow start is at work then.
        """
        if self.endpoint.order_header or (
            self._calls.pace.window <= self.endpoint.concurrency // 2
        ):
            self._is_due = True
        self._wake.set()

    async def _pause(self, troubles: int) -> None:
        """Pause an endpoint's sender after an error, but not beyond its stop."""
        until = monotonic() + back_off.delay(
            troubles, base=BACK_OFF_BASE, cap=BACK_OFF_CAP
        )
        while not self._is_stopping and (seconds := until - monotonic()) > 0:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()


async def _in_thread(executor: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)


def _is_past(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment <= now
