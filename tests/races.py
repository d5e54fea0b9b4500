"""Many at once, started together."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connection


def together(number: int, write: Callable[[int], None]) -> None:
    """Run the writers at once; raise what the first of them raised."""
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
    """Run works of different kinds at once; raise what the first of them raised."""

    def work(turn: int) -> None:
        works[turn]()

    together(len(works), work)
