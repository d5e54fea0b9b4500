"""Record what the calls of an endpoint gave, many in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial

from apps.core import back_off
from apps.redelivery.call_and_delivery_dataclasses import ClaimedDelivery, EndedAttempt
from apps.redelivery.models import Endpoint
from apps.redelivery.sending.database_threads import POSTGRES_AWAY, RunsWork
from apps.redelivery.services import attempt_results, delivery_claims

log = logging.getLogger(__name__)

# What ends within this time is recorded together.
GATHER_SECONDS = 0.02
MOST_AT_ONCE = 500
# Answers that Postgres does not take; beyond, no call is begun.
MOST_BEHIND = 2_000
BACK_OFF_BASE, BACK_OFF_CAP = 0.2, 3.0


class ResultRecorder:
    """Keep results in memory until Postgres has them.

    `on_recorded` is called after each transaction.
    """

    def __init__(
        self,
        *,
        threads: RunsWork,
        endpoint: Callable[[], Endpoint],
        clock: Callable[[], datetime],
        on_recorded: Callable[[], None],
    ) -> None:
        self._threads = threads
        self._endpoint = endpoint
        self._clock = clock
        self._on_recorded = on_recorded
        self._waiting: list[EndedAttempt] = []
        self._uncalled: list[ClaimedDelivery] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Tell whether the results of all calls are recorded."""
        return self._task is None

    @property
    def is_behind(self) -> bool:
        """Tell whether so many results are unrecorded that no call should begin."""
        return len(self._waiting) >= MOST_BEHIND

    def add(self, attempt: EndedAttempt) -> None:
        """Queue the result of a sender's call to be recorded in Postgres soon."""
        self._waiting.append(attempt)
        self._begin()

    def give_back(self, deliveries: Iterable[ClaimedDelivery]) -> None:
        """Queue claimed deliveries without a call, to be set to waiting again."""
        self._uncalled += deliveries
        self._begin()

    async def finish(self, *, seconds: float) -> None:
        """Wait until the results of all calls are recorded, or time is up.

        A delivery whose result is not recorded then is rescued after its claim.
        """
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=seconds)
        if self._task is not None:
            log.warning("%d results are not recorded", len(self._waiting))
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._record_all())

    async def _record_all(self) -> None:
        try:
            while self._waiting or self._uncalled:
                if len(self._waiting) < MOST_AT_ONCE:
                    await asyncio.sleep(GATHER_SECONDS)
                await self._record_some()
                self._on_recorded()
        finally:
            self._task = None

    async def _record_some(self) -> None:
        """Record a batch of queued results; then give back the uncalled deliveries."""
        if batch := self._waiting[:MOST_AT_ONCE]:
            await self._retry_while_away(partial(self._record, batch))
            del self._waiting[: len(batch)]
        if uncalled := self._uncalled[:]:
            give_back = partial(delivery_claims.give_back, deliveries=uncalled)
            await self._retry_while_away(partial(self._threads.run, give_back))
            del self._uncalled[: len(uncalled)]

    async def _retry_while_away(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do database work, again and again while Postgres is away."""
        troubles = 0
        while True:
            try:
                await work()
            except POSTGRES_AWAY as away:
                troubles += 1
                log.warning(
                    "%d results wait for Postgres: %s", len(self._waiting), away
                )
                await asyncio.sleep(
                    back_off.delay(troubles, base=BACK_OFF_BASE, cap=BACK_OFF_CAP)
                )
            else:
                return

    async def _record(self, batch: Sequence[EndedAttempt]) -> None:
        """Record a batch of calls' results; one that fails must not hold up others."""
        work = partial(
            attempt_results.record,
            endpoint=self._endpoint(),
            attempts=batch,
            now=self._clock(),
        )
        try:
            await self._threads.run(work)
        except POSTGRES_AWAY:
            raise
        except Exception:
            if len(batch) == 1:
                log.exception(
                    "the result of delivery %s cannot be recorded: its claim ends it",
                    batch[0].delivery,
                )
                return
            for attempt in batch:
                await self._record([attempt])
