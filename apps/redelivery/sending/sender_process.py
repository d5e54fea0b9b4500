"""The sender process: one event loop for the calls of all endpoints.

Every second it reads all endpoints and what is pending at those that it owns: a change
of an endpoint applies at once. Another sender process waits for each lock in the queue
of the lock, and takes over within a second when its owner ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from apps.core.bounded_threads import BoundedThreads
from apps.core.postgres_connections import conninfo
from apps.redelivery.endpoint_fields import MOST_CONCURRENCY
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound.http_caller import HttpCaller
from apps.redelivery.sending.database_threads import POSTGRES_AWAY, DatabaseThreads
from apps.redelivery.sending.due_listener import listen
from apps.redelivery.sending.endpoint_sender import EndpointSender
from apps.redelivery.sending.shared_sender_resources import SharedSenderResources
from apps.redelivery.services.pending_sender_work import (
    PendingWork,
    pending_work,
    store_heartbeat,
)
from poisonguard.locks.postgres import PostgresLocks

log = logging.getLogger(__name__)

READ_SECONDS = 1.0
HEARTBEAT = timedelta(seconds=5)
# Sessions of Postgres that the database work of all endpoints shares, beside one for
# the locks and one for notices.
MOST_SESSIONS = 6
# A thread each, while another process owns them.
MOST_ENDPOINTS = 900
MOST_BROKER_CALLS = 8
# At the end, calls that run may take so long; an attempt takes 10 s, unless it is set.
STOP_SECONDS = 12.0
CANCEL_AGAIN_SECONDS = 0.5
# The session of the locks says something every second. One of a process that is frozen
# says nothing: its end gives the endpoints to another process.
SILENT_SESSION = "10s"


async def serve(*, stop: asyncio.Event, clock: Callable[[], datetime]) -> None:
    """Run the sender process: send due deliveries of all endpoints until `stop`."""
    threads = DatabaseThreads(MOST_SESSIONS)
    # What is frozen must not keep its locks.
    locks = PostgresLocks(conninfo("sender", idle_session_timeout=SILENT_SESSION))
    waits = ThreadPoolExecutor(MOST_ENDPOINTS, thread_name_prefix="endpoint lock")
    errands = ThreadPoolExecutor(2, thread_name_prefix="lock errands")
    try:
        async with HttpCaller(connections_per_target=MOST_CONCURRENCY) as caller:
            tools = SharedSenderResources(
                threads=threads,
                caller=caller,
                locks=locks,
                waits=waits,
                errands=errands,
                publishers=BoundedThreads(MOST_BROKER_CALLS, name="forwarding"),
                clock=clock,
            )
            await SenderProcess(tools).run(stop)
    finally:
        waits.shutdown()
        errands.shutdown()
        threads.close()


class SenderProcess:
    """The senders of all endpoints, in this process."""

    def __init__(self, tools: SharedSenderResources) -> None:
        self._tools = tools
        self._senders: dict[int, EndpointSender] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._heard_at: datetime | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run the senders of all endpoints until `stop`; then end them.

        Every second it reads the endpoints, and checks the senders' locks.
        """
        background = [
            asyncio.create_task(listen(self._wake)),
            asyncio.create_task(self._watch_locks()),
        ]
        try:
            while not stop.is_set():
                await self._read()
                with suppress(TimeoutError):
                    async with asyncio.timeout(READ_SECONDS):
                        await stop.wait()
        finally:
            await cancel_until_ended(background)
            await self._end(self._senders)

    def _wake(self, endpoint_id: int) -> None:
        if endpoint_id in self._senders:
            self._senders[endpoint_id].wake()

    async def _read(self) -> None:
        """Read all endpoints and their pending work; start and end their senders."""
        now = self._tools.clock()
        owned = [pk for pk, each in self._senders.items() if each.grant is not None]
        is_beat = self._heard_at is None or now - self._heard_at >= HEARTBEAT
        try:
            endpoints, pending = await self._tools.threads.run(
                partial(_read, owned, beat_at=now if is_beat and owned else None)
            )
        except POSTGRES_AWAY as away:
            log.warning("the endpoints cannot be read: %s", away)
            return
        if is_beat and owned:
            self._heard_at = now
        await self._end([pk for pk in self._senders if pk not in endpoints])
        for pk, endpoint in endpoints.items():
            if pk not in self._senders:
                self._start(endpoint)
            self._senders[pk].update(endpoint, pending.get(pk, PendingWork()))

    def _start(self, endpoint: Endpoint) -> None:
        sender = EndpointSender(endpoint, self._tools)
        self._senders[endpoint.pk] = sender
        self._tasks[endpoint.pk] = asyncio.create_task(sender.run())

    async def _end(
        self, endpoint_ids: Sequence[int] | dict[int, EndpointSender]
    ) -> None:
        """End the senders of these endpoints, all at a time."""
        ids = list(endpoint_ids)
        senders = [self._senders.pop(pk) for pk in ids]
        await asyncio.gather(*(each.stop(seconds=STOP_SECONDS) for each in senders))
        await asyncio.gather(*(self._tasks.pop(pk) for pk in ids))

    async def _watch_locks(self) -> None:
        """Tell the senders whose endpoint locks are lost, checked every second."""
        loop = asyncio.get_running_loop()
        while True:
            owners = [each for each in self._senders.values() if each.grant is not None]
            losers = await loop.run_in_executor(
                self._tools.errands, _without_lock, owners
            )
            for sender in losers:
                sender.lose()
            await asyncio.sleep(READ_SECONDS)


async def cancel_until_ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the tasks, again where one goes on, and wait for their end.

    Before Python 3.12 `asyncio.wait_for`, by which psycopg waits for Postgres, loses a
    cancel that comes together with what it waits for.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)


def _without_lock(senders: Sequence[EndpointSender]) -> list[EndpointSender]:
    # The event loop may take a grant away between two looks at it.
    grants = [(each, each.grant) for each in senders]
    return [each for each, grant in grants if grant is not None and grant.lost]


def _read(
    owned: Sequence[int], *, beat_at: datetime | None
) -> tuple[dict[int, Endpoint], dict[int, PendingWork]]:
    """Read all endpoints with the rows they refer to, and our endpoints' pending work.

    Ours are those whose lock this process has: it stores their heartbeat first, if
    `beat_at` is a time.
    """
    if beat_at is not None:
        store_heartbeat(endpoint_ids=owned, now=beat_at)
    endpoints = Endpoint.objects.select_related(
        "topic", "forward_topic__broker", "forward_endpoint", "response_hook"
    )
    return {each.pk: each for each in endpoints}, pending_work(endpoint_ids=owned)
