"""Run functions concurrently, started together, each on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from django.db import connection

from tests.waiting import wait_until

R = TypeVar("R")


def together(number: int, work: Callable[[int], R]) -> list[R]:
    """Run `work` in `number` threads at once; return its results by turn.

    Raises the first error when all have ended.
    """
    start = threading.Barrier(number)

    def run(turn: int) -> R:
        start.wait()
        try:
            return work(turn)
        finally:
            connection.close()

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))


def at_once(*works: Callable[[], R]) -> list[R]:
    """Run different functions at once; return their results, or raise an error."""
    return together(len(works), lambda turn: works[turn]())


def on_another_connection(work: Callable[[], R]) -> R:
    """Run `work` in a thread, so that Postgres sees another session."""
    (result,) = at_once(work)
    return result


def beside_writers(
    write: Callable[[], None],
    work: Callable[[Callable[[], None]], None],
    *,
    writers: int = 4,
) -> None:
    """Do some work while threads write again and again.

    The work gets a function that waits until each of them has ended a write that began
    meanwhile. It fails where a writer waits for the work.
    """
    is_over, written = threading.Event(), [0] * writers

    def write_on(writer: int) -> None:
        while not is_over.is_set():
            write()
            written[writer] += 1

    def await_writers() -> None:
        before = [*written]
        wait_until(
            lambda: all(n >= b + 2 for n, b in zip(written, before, strict=True))
        )

    def work_and_end() -> None:
        try:
            wait_until(lambda: all(written))
            work(await_writers)
        finally:
            is_over.set()

    at_once(*[partial(write_on, writer) for writer in range(writers)], work_and_end)
