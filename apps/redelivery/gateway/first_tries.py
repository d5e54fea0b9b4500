"""First tries: a call of a back end whose outcome is its caller's answer.

Each runs in a task of its own, which the caller's end does not stop. A success goes to
the caller, and only counts. A failure is stored before its answer leaves.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from django.db import DatabaseError, InterfaceError

from apps.brokers.adapter_contract import Header
from apps.core import clock
from apps.core.errors import Unavailable
from apps.redelivery.call_and_delivery_dataclasses import (
    KEPT_ANSWER,
    CallResult,
    FirstTry,
)
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome
from apps.redelivery.endpoint_settings_dataclass import is_failure
from apps.redelivery.gateway import delivery_store
from apps.redelivery.gateway.caller_connections import CallerConnection
from apps.redelivery.gateway.database_threads import (
    DatabaseAway,
    GatewayDatabaseThreads,
)
from apps.redelivery.gateway.delivery_answers import (
    failure_without_postgres,
    status_after,
    stored_failure,
)
from apps.redelivery.gateway.delivery_store import PerhapsStored, StoredDelivery
from apps.redelivery.gateway.key_and_endpoint_cache import CachedBreaker
from apps.redelivery.gateway.request_checks import EndpointCall
from apps.redelivery.gateway.success_counts_and_sender_notices import BatchedWrites
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound.errors import OutcomeUnknown, RequestNotSent
from apps.redelivery.outbound.http_caller import EndpointAnswer, HttpCaller
from apps.redelivery.outbound.request_and_answer_headers import answer_headers

MIB = 1024 * 1024
# An answer up to this size is read whole before its status is sent.
HELD_ANSWER = MIB
STREAM_SECONDS = 600.0
# Beyond it, for a caller that is behind.
LAST_WRITE_SECONDS = 60.0
# A page of a back end is on our origin: it gets no rights there.
CONFINING = (
    (b"content-security-policy", b"sandbox"),
    (b"x-content-type-options", b"nosniff"),
)
ORDER_UNKNOWN = (
    "Whether an earlier request of its order key waits is unknown, so it was not tried."
)
STOPPED = "The gateway was stopped before the back end had answered."
BROKEN_OFF = "The answer was longer than the gateway holds, and broke off."

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failure:
    """A first try that failed, and the status that its caller gets."""

    first_try: FirstTry
    status: HTTPStatus
    unknown: OutcomeUnknown | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _HeldAnswer:
    """A success that is in memory as a whole."""

    status: int
    headers: list[Header]
    body: bytes


class FirstTries:
    """Make first tries, up to each endpoint's number at once."""

    def __init__(
        self,
        *,
        http: HttpCaller,
        database: GatewayDatabaseThreads,
        writes: BatchedWrites,
    ) -> None:
        self._http = http
        self._database = database
        self._writes = writes
        self._slots: dict[int, tuple[int, asyncio.Semaphore]] = {}
        self._limits: set[asyncio.Timeout] = set()
        self._late_answers: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def stop(self) -> None:
        """End all of the gateway's first tries that are under way: the gateway stops.

        A request that was written counts as unknown, another as failed, or as not
        tried.
        """
        self._is_stopping = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    async def aclose(self) -> None:
        """Stop waiting for late answers of back ends."""
        for task in self._late_answers:
            task.cancel()
        if self._late_answers:
            await asyncio.wait(self._late_answers)

    async def run(
        self, call: EndpointCall, caller: CallerConnection, breaker: CachedBreaker
    ) -> None:
        """Call the back end once, and answer the caller; store what failed."""
        why = await self._reason_against(call, breaker)
        if why:
            await self._store_untried(call, caller, why)
            return
        slots = self._slots_of(call.endpoint)
        if not await self._has_slot(slots, call.endpoint):
            number = call.endpoint.concurrency
            why = f"All {number} calls of its endpoint are in use, so it was not tried."
            await self._store_untried(call, caller, why)
            return
        try:
            outcome = await self._attempt(call, caller)
        finally:
            slots.release()
        if isinstance(outcome, _Failure):
            await self._store_failure(call, caller, outcome, breaker)
        else:
            # Before the answer, which its caller may not take.
            self._writes.count_success(call.endpoint.pk)
            if breaker.is_failing:
                await self._close_breaker(call, breaker)
            if isinstance(outcome, _HeldAnswer):
                await caller.begin(outcome.status, outcome.headers)
                await caller.write(outcome.body, is_last=True)

    async def _reason_against(self, call: EndpointCall, breaker: CachedBreaker) -> str:
        """Return why a first try is not made: a stop, breaker or order key. Else ""."""
        if self._is_stopping:
            return STOPPED
        if call.order_key is None and not breaker.is_open:
            return ""
        try:
            return await self._database.run(
                partial(
                    delivery_store.reason_against_try,
                    call.endpoint,
                    call.order_key,
                    is_open=breaker.is_open,
                )
            )
        except (DatabaseAway, DatabaseError, InterfaceError) as problem:
            log.warning("breaker and order are not checked: %s", problem)
            return "" if call.order_key is None else ORDER_UNKNOWN

    def _slots_of(self, endpoint: Endpoint) -> asyncio.Semaphore:
        """Return the semaphore of an endpoint's first tries at once in a gateway."""
        size, slots = self._slots.get(endpoint.pk, (0, None))
        if slots is None or size != endpoint.concurrency:
            slots = asyncio.Semaphore(endpoint.concurrency)
            self._slots[endpoint.pk] = (endpoint.concurrency, slots)
        return slots

    async def _has_slot(self, slots: asyncio.Semaphore, endpoint: Endpoint) -> bool:
        """Wait for a slot of an endpoint's concurrent calls; tell whether it came.

        The wait and the attempt end before the caller gives up.
        """
        if not (slots.locked() or self._is_stopping):
            return await slots.acquire()  # at once
        spare = endpoint.client_timeout - endpoint.attempt_timeout
        limit = self._new_limit(spare / 2)
        try:
            async with limit:
                return await slots.acquire()
        except TimeoutError:
            return False
        finally:
            self._limits.discard(limit)

    def _new_limit(self, seconds: float | None) -> asyncio.Timeout:
        """Return a time limit that `stop` ends while it is among `_limits`."""
        limit = asyncio.timeout(0 if self._is_stopping else seconds)
        self._limits.add(limit)
        return limit

    async def _attempt(
        self, call: EndpointCall, caller: CallerConnection
    ) -> _HeldAnswer | _Failure | None:
        """Make the first try of a call; return its answer, its failure, or None.

        A short answer is returned whole, for `run` to send it. None is a longer one,
        which was streamed to the caller.
        """
        loop = asyncio.get_running_loop()
        endpoint, begun_at = call.endpoint, clock.now()
        until = loop.time() + endpoint.attempt_timeout
        unknown = None
        is_written = asyncio.Event()
        limit = self._new_limit(None)
        try:
            async with (
                limit,
                self._http.call(
                    call.request,
                    seconds=endpoint.attempt_timeout,
                    late_for=endpoint.claim_timeout - endpoint.attempt_timeout,
                    on_write=is_written.set,
                ) as answer,
            ):
                result = await self._receive(answer, endpoint, caller)
        except RequestNotSent as problem:
            result = CallResult(outcome=AttemptOutcome.FAILED, detail=str(problem))
        except OutcomeUnknown as problem:
            unknown = problem
            result = CallResult(outcome=AttemptOutcome.UNKNOWN, detail=str(problem))
        except TimeoutError:
            if not limit.expired():
                raise
            # The gateway stops.
            if caller.has_answer:
                caller.break_off()
            outcome = (
                AttemptOutcome.UNKNOWN if is_written.is_set() else AttemptOutcome.FAILED
            )
            result = CallResult(outcome=outcome, detail=STOPPED)
        finally:
            self._limits.discard(limit)
        if not isinstance(result, CallResult):
            return result
        return _Failure(
            first_try=FirstTry(begun_at=begun_at, ended_at=clock.now(), result=result),
            status=status_after(result, is_over_time=loop.time() >= until),
            unknown=unknown,
        )

    async def _receive(
        self, answer: EndpointAnswer, endpoint: Endpoint, caller: CallerConnection
    ) -> _HeldAnswer | CallResult | None:
        """Read a back end's answer into memory; stream a longer one to the caller."""
        if is_failure(answer.status, endpoint.failure_statuses):
            return await self._failed_answer(answer)
        try:
            beginning = await answer.read(HELD_ANSWER)
        except OutcomeUnknown as problem:
            return _unknown(answer, str(problem))
        headers = [*answer_headers(answer.headers), *CONFINING]
        if answer.is_complete:
            return _HeldAnswer(status=answer.status, headers=headers, body=beginning)
        await caller.begin(answer.status, headers)
        try:
            await self._stream(answer, caller, beginning)
        except OutcomeUnknown as problem:
            caller.break_off()
            return _unknown(
                answer, f"{BROKEN_OFF} {problem}", body=beginning[:KEPT_ANSWER]
            )
        return None

    async def _stream(
        self, answer: EndpointAnswer, caller: CallerConnection, beginning: bytes
    ) -> None:
        """Stream a back end's answer to the caller, until it hangs up or is slow.

        Raises OutcomeUnknown where the back end is slow, or breaks off.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + STREAM_SECONDS

        async def write(data: bytes, *, is_last: bool = False) -> None:
            # The back end's time ends first, though it sends bytes without end.
            async with asyncio.timeout_at(until + LAST_WRITE_SECONDS):
                await caller.write(data, is_last=is_last)

        try:
            await write(beginning)
            async for piece in answer.chunks(seconds=until - clock()):
                await write(piece)
                if caller.is_gone():
                    return
            await write(b"", is_last=True)
        except TimeoutError:
            log.warning("a caller took its answer too slowly")
            caller.break_off()

    async def _failed_answer(self, answer: EndpointAnswer) -> CallResult:
        """Build the result of a first try that a back end answered with a failure.

        It has the status and the beginning of the answer.
        """
        body = b""
        with suppress(OutcomeUnknown):  # the status has said it all
            body = await answer.read(KEPT_ANSWER)
        return CallResult(
            outcome=AttemptOutcome.FAILED,
            status=answer.status,
            detail=f"The back end answered {answer.status}.",
            headers=answer.headers,
            body=body,
            is_cut=not answer.is_complete,
        )

    async def _close_breaker(self, call: EndpointCall, breaker: CachedBreaker) -> None:
        """Close a breaker that had counted failures, after a success."""
        breaker.is_failing = breaker.is_open = False
        try:
            await self._database.run(
                partial(delivery_store.close_breaker, call.endpoint)
            )
        except (DatabaseAway, DatabaseError, InterfaceError) as problem:
            log.warning("a breaker is closed later: %s", problem)

    async def _store_failure(
        self,
        call: EndpointCall,
        caller: CallerConnection,
        failure: _Failure,
        breaker: CachedBreaker,
    ) -> None:
        """Store a request whose first try failed, and then answer its caller."""
        detail = failure.first_try.result.detail
        try:
            stored = await self._stored(call, failure.first_try)
        except _NotStored as problem:
            refusal = failure_without_postgres(
                call.id,
                detail=detail,
                status=failure.status,
                may_be_stored=problem.may_be_stored,
            )
        else:
            breaker.is_failing, breaker.is_open = True, stored.is_breaker_open
            self._keep_late_answer(call, failure.unknown)
            refusal = stored_failure(
                stored.delivery, call.endpoint, detail=detail, status=failure.status
            )
        if not caller.has_answer:
            await caller.answer(*refusal.message(call.soap))

    async def _store_untried(
        self, call: EndpointCall, caller: CallerConnection, why: str
    ) -> None:
        """Store a request whose back end was not called, and then answer its caller."""
        try:
            stored = await self._stored(call, None)
        except _NotStored as problem:
            refusal = failure_without_postgres(
                call.id,
                detail=why,
                status=HTTPStatus.BAD_GATEWAY,
                may_be_stored=problem.may_be_stored,
            )
        else:
            refusal = stored_failure(
                stored.delivery,
                call.endpoint,
                detail=why,
                status=HTTPStatus.BAD_GATEWAY,
            )
        await caller.answer(*refusal.message(call.soap))

    async def _stored(
        self, call: EndpointCall, first_try: FirstTry | None
    ) -> StoredDelivery:
        """Store a call as a delivery and notify the senders.

        Raises _NotStored where Postgres does not store it, or perhaps did.
        """
        store = partial(
            delivery_store.store_with_breaker, call.endpoint, call.delivery(first_try)
        )
        try:
            stored = await self._database.run(store)
        except PerhapsStored as problem:
            raise _NotStored(may_be_stored=True) from problem
        except (DatabaseAway, DatabaseError, InterfaceError) as problem:
            log.error("a request was not stored: %s", problem)  # noqa: TRY400
            raise _NotStored(may_be_stored=False) from problem
        self._writes.notify(call.endpoint.pk)
        return stored

    def _keep_late_answer(
        self, call: EndpointCall, unknown: OutcomeUnknown | None
    ) -> None:
        """Await the late answer to a first try that timed out; store it on its attempt.

        That is done in the background, and only if an answer may still come.
        """
        if unknown is None:
            return
        task = asyncio.create_task(self._await_late_answer(call, unknown))
        self._late_answers.add(task)
        task.add_done_callback(self._late_answers.discard)

    async def _await_late_answer(
        self, call: EndpointCall, unknown: OutcomeUnknown
    ) -> None:
        late = await unknown.late_answer()
        if late is None:
            return
        result = CallResult(
            outcome=AttemptOutcome.UNKNOWN, status=late.status, body=late.body
        )
        try:
            await self._database.run(
                partial(delivery_store.keep_late_answer, call.id, result)
            )
        except (Unavailable, DatabaseError, InterfaceError) as problem:
            log.warning("a late answer was not kept: %s", problem)


class _NotStored(Exception):
    """Postgres did not store a request, or perhaps it did."""

    def __init__(self, *, may_be_stored: bool) -> None:
        super().__init__()
        self.may_be_stored = may_be_stored


def _unknown(answer: EndpointAnswer, detail: str, *, body: bytes = b"") -> CallResult:
    """Build the `unknown` result of a first try whose answer broke off."""
    return CallResult(
        outcome=AttemptOutcome.UNKNOWN,
        status=answer.status,
        detail=detail,
        headers=answer.headers,
        body=body,
        is_cut=True,
    )
