"""Run functions concurrently, started together, each on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connection

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
