"""Give a run a thread beside its own, to send while it reads the next messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from django.db import connection, connections

P = ParamSpec("P")
Result = TypeVar("Result")


class InlineExecutor(Executor):
    """Runs each call at once, in the caller's thread."""

    def submit(
        self, work: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[Result]:
        """Run a call at once, in the thread of an operation's run.

        Returns the finished future.
        """
        future = Future[Result]()
        future.set_result(work(*args, **kwargs))
        return future


@contextmanager
def helper_thread(name: str) -> Iterator[Executor]:
    """Yield a thread with a database connection of its own, for an operation's run.

    No other connection sees what a caller's open transaction wrote: inside one, the
    calls run in the caller's thread.
    """
    if connection.in_atomic_block:
        yield InlineExecutor()
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix=name) as thread:
        try:
            yield thread
        finally:
            thread.submit(connections.close_all)
