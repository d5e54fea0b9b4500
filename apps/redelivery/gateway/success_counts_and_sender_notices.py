"""Writes that many calls share: counts, uses of keys, and notices to the senders."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from datetime import datetime
from functools import partial

from django.db import DatabaseError, IntegrityError, InterfaceError

from apps.core import clock
from apps.core.errors import Unavailable
from apps.redelivery.due_notices import notify_due
from apps.redelivery.gateway.database_threads import GatewayDatabaseThreads
from apps.redelivery.services import call_counts
from apps.team import services as team

COUNT_SECONDS = 1.0
# Postgres commits notices one after the other.
NOTICE_SECONDS = 0.05

log = logging.getLogger(__name__)
_PROBLEMS = (Unavailable, DatabaseError, InterfaceError)


class BatchedWrites:
    """Count successes by endpoint and minute, and notify senders, in batches."""

    def __init__(self, database: GatewayDatabaseThreads) -> None:
        self._database = database
        self._successes: Counter[tuple[int, datetime]] = Counter()
        self._keys: set[str] = set()
        self._due: set[int] = set()
        self._notice: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._counting = asyncio.create_task(self._count_forever())

    def count_success(self, endpoint_id: int) -> None:
        """Count an endpoint's success at the first try, for the next batch."""
        minute = clock.now().replace(second=0, microsecond=0)
        self._successes[endpoint_id, minute] += 1

    def note_use(self, key: str) -> None:
        """Remember that an API key was used: the next batch stores when."""
        self._keys.add(key)

    def notify(self, endpoint_id: int) -> None:
        """Tell the senders within a moment that something of an endpoint is due."""
        self._due.add(endpoint_id)
        if self._notice is None:
            self._notice = asyncio.create_task(self._notify_soon())

    async def aclose(self) -> None:
        """Write what no batch of the gateway's has written.

        That is counts of successes, uses of API keys, and notices to the senders.
        """
        if self._notice is not None:
            await self._notice
        self._stop.set()
        await self._counting

    async def _count_forever(self) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(COUNT_SECONDS):
                    await self._stop.wait()
            await self._note_uses()
            await self._add_successes()

    async def _note_uses(self) -> None:
        keys, self._keys = self._keys, set()
        if not keys:
            return
        try:
            await self._database.run(
                partial(team.note_use, names=keys, now=clock.now())
            )
        except _PROBLEMS as problem:
            log.warning("uses of keys are not noted: %s", problem)

    async def _add_successes(self) -> None:
        """Add success counts to the rows of endpoints; keep them where that fails."""
        successes, self._successes = self._successes, Counter()
        for (endpoint_id, minute), number in successes.items():
            try:
                await self._database.run(partial(_add, endpoint_id, minute, number))
            except IntegrityError:
                log.info("an endpoint was removed: its last calls are not counted")
            except _PROBLEMS as problem:
                log.warning("successes are counted later: %s", problem)
                self._successes[endpoint_id, minute] += number

    async def _notify_soon(self) -> None:
        await asyncio.sleep(NOTICE_SECONDS)
        endpoints, self._due, self._notice = self._due, set(), None
        for endpoint_id in endpoints:
            try:
                await self._database.run(partial(notify_due, endpoint_id=endpoint_id))
            except _PROBLEMS as problem:
                log.warning("senders find it at their next look: %s", problem)


def _add(endpoint_id: int, minute: datetime, number: int) -> None:
    counts = {call_counts.SUCCEEDED_AT_FIRST: number}
    call_counts.add(endpoint_id=endpoint_id, counts=counts, now=minute)
