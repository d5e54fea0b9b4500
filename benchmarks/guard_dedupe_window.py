"""The cost of a dedupe window: a guard with one against a guard without.

In memory, each message costs a digest of its id, two look-ups and two locks beside the
healthy path, and some bytes while it is remembered. In Postgres it costs one statement
more in a transaction that has an INSERT anyway.
"""

from __future__ import annotations

import logging
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import thread_time
from typing import Any

import psycopg

from benchmarks._benchmark_harness import ROUNDS
from benchmarks._benchmark_harness import compare as compared
from poisonguard import Guard
from poisonguard.dedupe import MemoryWindow, Window
from poisonguard.dedupe.postgres import PostgresWindow, schema
from poisonguard.readers.plain import PlainReader
from poisonweb.embedded import postgres

NUMBER = 20_000
TRANSACTIONS = 2_000
ADD = "INSERT INTO effects VALUES (%s)"

Message = dict[str, Any]
compare = partial(compared, clock=thread_time)


def handler(message: Message) -> None:
    """Handle a message by doing nothing."""


@contextmanager
def guarded(dedupe: Window | None) -> Iterator[Guard]:
    """Start a guard with this dedupe window, or without one."""
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(
            topic="orders",
            consumer_group="billing",
            url="http://127.0.0.1:1",
            api_key="none",
            reader=PlainReader(seq="seq"),
            journal=folder,
            when_unloaded="start",
            start_timeout=0.1,
            dedupe=dedupe,
        )
        guard.start()
        try:
            yield guard
        finally:
            guard.close(timeout=0)  # there is no server to report to


def messages(numbers: Iterator[int], number: int = NUMBER) -> list[Message]:
    """Make a batch of messages with the next numbers as ids."""
    return [
        {"bookmark": f"b-{n}", "seq": n, "message_id": f"m-{n:032}", "body": b"{}"}
        for n in (next(numbers) for _ in range(number))
    ]


def each(guard: Guard, numbers: Iterator[int]) -> Callable[[], None]:
    """Return a function that handles a new batch of messages at each call."""
    batches = [messages(numbers) for _ in range(ROUNDS + 1)]
    rest = iter(batches)

    def work() -> None:
        for message in next(rest):
            guard.handle(message, handler)

    return work


def in_memory() -> None:
    """Print the cost of a dedupe window in memory, and its bytes for a message."""
    numbers = count()
    with guarded(None) as without, guarded(MemoryWindow()) as within:
        compare(
            "with a window in memory",
            number=NUMBER,
            ours=each(within, numbers),
            baseline=each(without, numbers),
            named="without",
        )
    tracemalloc.start()
    with guarded(MemoryWindow(messages=NUMBER)) as guard:
        work = each(guard, numbers)
        before, _ = tracemalloc.get_traced_memory()
        work()
        after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"a remembered message: {(after - before) / NUMBER:,.0f} bytes")


def in_postgres(dsn: str) -> None:
    """Print the cost of a dedupe window in Postgres against a bare transaction."""
    with psycopg.connect(dsn) as connection:
        connection.execute(schema())
        connection.execute("CREATE TABLE effects (message text)")
    numbers = count()
    with psycopg.connect(dsn, autocommit=True) as connection:
        window = PostgresWindow(connection.transaction)

        def add(message: Message) -> None:
            window.connection.execute(ADD, [message["message_id"]])

        def add_alone(message: Message) -> None:
            with connection.transaction():
                connection.execute(ADD, [message["message_id"]])

        def work(guard: Guard, add: Callable[[Message], None]) -> None:
            for message in messages(numbers, TRANSACTIONS):
                guard.handle(message, add)

        with guarded(window) as within, guarded(None) as without:
            compared(
                "with a window in Postgres",
                number=TRANSACTIONS,
                ours=partial(work, within, add),
                baseline=partial(work, without, add_alone),
                named="a transaction with an INSERT",
            )


def main() -> None:
    logging.disable()
    in_memory()
    with (
        tempfile.TemporaryDirectory(prefix="pw-bench-") as folder,
        postgres.temporary(Path(folder) / "postgres") as dsn,
    ):
        in_postgres(dsn)


if __name__ == "__main__":
    main()
