"""The calls of an endpoint: those under way, and the deliveries claimed for the next.

While calls succeed with all of their concurrency, as much is claimed ahead as begins
within a quarter of a second, and while the next claim is made: no call waits for the
commit of a claim. What is claimed and cannot begin soon is given back uncalled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic

from apps.redelivery.call_and_delivery_dataclasses import ClaimedDelivery, EndedAttempt
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome
from apps.redelivery.models import Endpoint
from apps.redelivery.sending import delivery_call
from apps.redelivery.sending.call_pace import CallPace, CallThroughput
from apps.redelivery.sending.database_threads import POSTGRES_AWAY
from apps.redelivery.sending.delivery_call import DeliveryCall
from apps.redelivery.sending.result_recorder import ResultRecorder
from apps.redelivery.sending.shared_sender_resources import SharedSenderResources
from apps.redelivery.services import attempt_results

log = logging.getLogger(__name__)

# Of the bodies of all calls that run in this process.
MOST_BYTES_IN_FLIGHT = 256 * 2**20
AHEAD_SECONDS = 0.25
MOST_AHEAD_SECONDS = 0.75
MOST_AHEAD = 1_000
# Shorter than the 5 seconds by which a claim is longer than an attempt.
LONGEST_WAIT = 1.0


class CallsUnderWay:
    """Begin calls as far as there is room, and hand their results to the recorder.

    `on_room` is called when calls have ended and others should be claimed.
    """

    def __init__(
        self,
        tools: SharedSenderResources,
        endpoint: Callable[[], Endpoint],
        recorder: ResultRecorder,
        *,
        on_room: Callable[[], None],
    ) -> None:
        self._tools = tools
        self._endpoint = endpoint
        self._recorder = recorder
        self._on_room = on_room
        self.pace = CallPace()
        # `on_room` is not called before so many may begin.
        self.room_wanted = 1
        self.claims_ahead = True
        # How long the last claim took.
        self.claim_seconds = 0.0
        self._is_stopping = False
        # What is claimed, and since when it is ready.
        self._ready = deque[tuple[float, ClaimedDelivery]]()
        # With so few that are ready, the next claim is due.
        self._low_mark = 0
        self._throughput = CallThroughput()
        self._under_way = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self._late_answers: set[asyncio.Task[None]] = set()

    def begin_slowly(self) -> None:
        """Begin the endpoint's slow start again, as its new owner."""
        self.pace, self._throughput = CallPace(), CallThroughput()

    def stop(self) -> None:
        """Begin no call of the endpoint any more; give back its claimed deliveries."""
        self._is_stopping = True
        self.give_back()

    def room(self) -> int:
        """Return how many calls of the endpoint may begin now."""
        endpoint = self._endpoint()
        if self._is_stopping or self._recorder.is_behind:
            return 0
        if self._tools.bytes_in_flight >= MOST_BYTES_IN_FLIGHT:
            return 0
        self.pace.limit_window(endpoint.concurrency)
        return self.pace.room(
            in_flight=self._under_way,
            concurrency=endpoint.concurrency,
            rate=endpoint.rate,
            now=monotonic(),
        )

    def numbers_to_claim(self) -> tuple[int, int]:
        """Return how many deliveries to claim for the endpoint, as two numbers.

        The first are for calls that may begin now, the others are claimed ahead.
        """
        room, ready, ahead = self.room(), len(self._ready), self._ahead()
        self._low_mark = ahead * 3 // 4
        if ready > self._low_mark:
            return 0, 0
        return max(room - ready, 0), ahead - max(ready - room, 0)

    def add(self, claimed: Sequence[ClaimedDelivery]) -> None:
        """Begin the calls of claimed deliveries; the rest wait for a call's end."""
        self._tools.bytes_in_flight += size_of(claimed)
        now = monotonic()
        self._ready += ((now, delivery) for delivery in claimed)
        while (delivery := self._next()) is not None:
            task = asyncio.create_task(self._work(delivery))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def give_back_old(self) -> None:
        """Give back the claimed deliveries that waited too long for their call."""
        oldest = monotonic() - LONGEST_WAIT
        old = sum(since < oldest for since, _ in self._ready)
        self._give_back(old)

    def give_back(self) -> None:
        """Give back all claimed deliveries whose call has not begun."""
        self._give_back(len(self._ready))

    def _give_back(self, number: int) -> None:
        if number:
            deliveries = [self._ready.popleft()[1] for _ in range(number)]
            self._tools.bytes_in_flight -= size_of(deliveries)
            self._recorder.give_back(deliveries)

    async def wait(self) -> None:
        """Wait until all calls of the endpoint by this sender process have ended."""
        if self.tasks:
            await asyncio.wait(self.tasks)

    async def finish(self, *, seconds: float) -> None:
        """Wait until the calls have ended; then cancel those that have not."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=max(0.0, seconds))
        for task in (*self._late_answers, *self.tasks):
            task.cancel()
        await self.wait()

    def _ahead(self) -> int:
        """Return how many deliveries to claim for calls that cannot begin yet.

        It is how many calls will end soon, judged by the last ones, and 0 where no call
        is claimed ahead: with a rate, at a stop, while calls fail or start slowly.
        """
        seconds = min(AHEAD_SECONDS + 2 * self.claim_seconds, MOST_AHEAD_SECONDS)
        expected = self._throughput.expected(seconds=seconds, now=monotonic())
        if (
            self._is_stopping
            or not self.claims_ahead
            or self._recorder.is_behind
            or self._tools.bytes_in_flight >= MOST_BYTES_IN_FLIGHT
            or self._endpoint().rate is not None
            or self.pace.failures
            or self.pace.window < self._endpoint().concurrency
        ):
            return 0
        return min(expected, MOST_AHEAD)

    def _next(self) -> ClaimedDelivery | None:
        """Take the next claimed delivery, whose call begins now; None if none may."""
        if self._ready and self._ready[0][0] < monotonic() - LONGEST_WAIT:
            self.give_back_old()
        if not self._ready or not self.room():
            return None
        self._under_way += 1
        self.pace.begin(1)
        return self._ready.popleft()[1]

    def _is_short(self) -> bool:
        """Tell whether the endpoint's sender should claim more deliveries now."""
        if self._ready or self._low_mark:
            return len(self._ready) <= self._low_mark
        return self.room() >= self.room_wanted

    async def _work(self, delivery: ClaimedDelivery) -> None:
        """Call the back end for one delivery after the other, while there is one."""
        following: ClaimedDelivery | None = delivery
        while following is not None:
            await self._call(following)
            following = self._next()
            if self._is_short():
                self._on_room()

    async def _call(self, delivery: ClaimedDelivery) -> None:
        """Call the back end for a delivery, and queue the result to be recorded."""
        begun_at = self._tools.clock()
        call = await delivery_call.call(
            self._tools.caller, self._endpoint(), delivery, now=begun_at
        )
        self._under_way -= 1
        self._tools.bytes_in_flight -= len(delivery.body)
        self._throughput.add()
        breaker_failures = self._endpoint().breaker_failures
        self.pace.end(
            is_success=call.result.outcome is AttemptOutcome.SUCCEEDED,
            outage=breaker_failures,
        )
        if breaker_failures and self.pace.failures >= breaker_failures:
            self.give_back()
        self._recorder.add(
            EndedAttempt(
                delivery=delivery.id,
                claim=delivery.claim,
                attempt=delivery.attempt,
                begun_at=begun_at,
                ended_at=self._tools.clock(),
                result=call.result,
                is_requeued=delivery.is_requeued,
            )
        )
        if call.late_answer is not None:
            task = asyncio.create_task(self._await_late_answer(delivery, call))
            self._late_answers.add(task)
            task.add_done_callback(self._late_answers.discard)

    async def _await_late_answer(
        self, delivery: ClaimedDelivery, call: DeliveryCall
    ) -> None:
        """Await the late answer to a call that timed out; store it on its attempt."""
        late = await call.late_answer() if call.late_answer is not None else None
        if late is None:
            return
        work = partial(
            attempt_results.keep_late_answer,
            delivery=delivery.id,
            number=delivery.attempt,
            result=delivery_call.of_late_answer(late),
            now=self._tools.clock(),
        )
        try:
            await self._tools.threads.run(work)
        except POSTGRES_AWAY as away:
            log.warning("the late answer to delivery %s is lost: %s", delivery.id, away)


def size_of(deliveries: Iterable[ClaimedDelivery]) -> int:
    """Return the bytes of these deliveries' bodies."""
    return sum(len(delivery.body) for delivery in deliveries)
