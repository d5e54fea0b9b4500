"""Run functions concurrently, started together."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connection


def together(number: int, write: Callable[[int], None]) -> None:
    """Run `write` in `number` threads at once; raise the first error."""
    start, troubles = threading.Barrier(number), []

    def run(turn: int) -> None:
        start.wait()
        try:
            write(turn)
        except Exception as trouble:  # noqa: BLE001 - raised again below
            troubles.append(trouble)
        finally:
            connection.close()

    writers = [threading.Thread(target=run, args=(turn,)) for turn in range(number)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    if troubles:
        raise troubles[0]


def at_once(*works: Callable[[], object]) -> None:
    """Run different functions at once; raise the first error."""

    def work(turn: int) -> None:
        works[turn]()

    together(len(works), work)
