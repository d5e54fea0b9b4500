"""Threads that keep a session of Postgres each: the pool of the gateway.

The event loop gives them calls. While Postgres is away they fail at once, so that no
caller waits for what cannot come.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from django.db import InterfaceError, OperationalError, connection, connections

from apps.core.errors import Unavailable
from apps.core.postgres_connections import session_ends_as_absence

T = TypeVar("T")

# After this long without a call, a thread checks that its session is still there.
IDLE_SECONDS = 1.0
# While Postgres is away, it is asked once in this time.
AWAY_SECONDS = 1.0

log = logging.getLogger(__name__)


class DatabaseAway(Unavailable):
    """Postgres does not answer: nothing can be stored at the moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def give(self, outcome: Any, error: BaseException | None) -> None:
        """Give a database call's outcome to the event loop, which may have ended."""
        try:
            self.loop.call_soon_threadsafe(self._end, outcome, error)
        except RuntimeError:
            log.warning("the gateway stopped before Postgres answered")

    def _end(self, outcome: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(outcome)
        else:
            self.future.set_exception(error)


class GatewayDatabaseThreads:
    """Run calls in at most `most` threads; further calls wait for one of them."""

    def __init__(self, most: int) -> None:
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._away_until = 0.0
        self._threads = [
            # `aclose` joins them; a gateway that cannot start ends without it.
            threading.Thread(target=self._serve, name=f"database-{number}", daemon=True)
            for number in range(most)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in one of the gateway's database threads; return its result.

        Raises DatabaseAway while Postgres is silent. The function is not run then,
        unless the session broke meanwhile.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.put(_Call(work=work, loop=loop, future=future))
        return cast(T, await future)

    async def aclose(self) -> None:
        """Finish all database calls, and end the threads with their sessions."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _serve(self) -> None:
        idle_since = time.monotonic()
        while (call := self._queue.get()) is not None:
            outcome: Any = None
            error: BaseException | None = None
            try:
                self._ensure_session(idle_since)
                with session_ends_as_absence():
                    outcome = call.work()
            except (OperationalError, InterfaceError) as problem:
                error = self._note_problem(problem)
            except BaseException as problem:  # noqa: BLE001 - raised on to who waits
                error = problem
            call.give(outcome, error)
            idle_since = time.monotonic()
        connections.close_all()

    def _ensure_session(self, idle_since: float) -> None:
        """Connect a gateway's database thread to Postgres unless its session works.

        Raises DatabaseAway.
        """
        if connection.connection is not None:
            is_idle = time.monotonic() - idle_since > IDLE_SECONDS
            if not is_idle or connection.is_usable():
                return
            connection.close()
        if time.monotonic() < self._away_until:
            raise DatabaseAway
        try:
            connection.ensure_connection()
        except (OperationalError, InterfaceError) as problem:
            self._away_until = time.monotonic() + AWAY_SECONDS
            raise DatabaseAway from problem

    def _note_problem(self, problem: Exception) -> Exception:
        """Close the broken Postgres session of a gateway's database thread.

        Returns the error, for who called.
        """
        log.warning("a session of Postgres failed: %s", problem)
        connection.close()
        return problem
