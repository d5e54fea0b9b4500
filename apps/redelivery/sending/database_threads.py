"""The threads in which the event loop's database work is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from django.db import InterfaceError, OperationalError, connection

from apps.core.postgres_connections import borrow

T = TypeVar("T")

# What is tried again: nothing is wrong with the work itself.
POSTGRES_AWAY = (OperationalError, InterfaceError)


class RunsWork(Protocol):
    """Run database work beside the event loop."""

    async def run(self, work: Callable[[], T]) -> T:
        """Do a sender's database work in a thread; return or raise what it does."""


class DatabaseThreads:
    """A few threads; each borrows a session of Postgres for one work."""

    def __init__(self, most: int) -> None:
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="sender database")

    async def run(self, work: Callable[[], T]) -> T:
        """Do a sender's database work in a thread; return or raise what it does."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _with_session, work)

    def close(self) -> None:
        """Wait for the sender's database work that was begun, and end its threads."""
        self._threads.shutdown()


def _with_session(work: Callable[[], Any]) -> Any:
    try:
        with borrow():
            return work()
    finally:
        connection.close()
