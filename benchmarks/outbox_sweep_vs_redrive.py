"""Sweeping an outbox against our own redrive, to the same broker, in turns.

Both move messages of 1 KiB from one durable Postgres to one queue or stream: the
redrive from stored poisons to their record, with the operations engine, and the sweeper
of the server from the producer's table to its marks, from its start to its end. Target:
at least 0.7 of the redrive. Processor time is that of this process and of Postgres,
without the broker: on a busy machine only that has a meaning.

NUMBER and ROUNDS may be set, and the kinds of brokers given as arguments.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg

from benchmarks._benchmark_harness import product
from poisonguard.outbox.postgres_schema import schema

NUMBER = int(os.environ.get("NUMBER", "20000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
LEAST = 0.7
TICKS = os.sysconf("SC_CLK_TCK")
Times = tuple[float, float]
COPY = """
COPY poisonguard_outbox (producer, message_id, topic, body, headers) FROM STDIN
"""
WAITS = """
SELECT EXISTS (
    SELECT FROM poisonguard_outbox
    WHERE sent_at IS NULL AND duplicate_of IS NULL AND quarantined_at IS NULL
)
"""


class ProducerOutbox:
    """The tables of a producer, in a schema of the product's database."""

    def __init__(self) -> None:
        self.connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        self.connection.execute("CREATE SCHEMA shop")
        self.connection.execute("SET search_path TO shop")
        self.connection.execute(schema())

    def put_all(self, *, queue: str) -> None:
        """Put as many messages as the redrive has into the outbox, of the same size."""
        headers = [b"trace", b"1"]
        with self.connection.cursor().copy(COPY) as copy:
            for _ in range(NUMBER):
                copy.write_row(("shop", str(uuid4()), queue, os.urandom(1024), headers))

    def wait_until_sent(self) -> None:
        """Return when no row of the benchmark's outbox waits any more."""
        while self.connection.execute(WAITS).fetchone() == (True,):
            time.sleep(0.02)

    def processor_seconds(self) -> float:
        """Return the processor time of this process, and of Postgres."""
        session = self.connection.info.backend_pid
        postmaster = int(_stat(session)[1])
        parts = [sum(map(int, _stat(postmaster)[11:15]))]
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text()
        for pid in map(int, children.split()):
            try:
                parts.append(sum(map(int, _stat(pid)[11:13])))
            except FileNotFoundError:
                continue  # it has just ended
        return time.process_time() + sum(parts) / TICKS


def _stat(pid: int) -> list[str]:
    """Return, for a benchmark, a process's /proc/<pid>/stat from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


@contextmanager
def rabbitmq(queue: str) -> Iterator[str]:
    """Run a RabbitMQ with an empty quorum queue; yield its URL."""
    from tests.brokers.rabbitmq import RabbitMqServer

    with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        server = RabbitMqServer(Path(folder), schedulers=os.cpu_count() or 1)
        try:
            with server.connection() as connection:
                arguments = {"x-queue-type": "quorum"}
                connection.channel().queue_declare(
                    queue, durable=True, arguments=arguments
                )
            yield server.url
        finally:
            server.stop()


@contextmanager
def redis_streams(_queue: str) -> Iterator[str]:
    """Yield the URL of the benchmark's Redis; its first message makes the stream."""
    yield os.environ["POISONWEB_REDIS_URL"]


BROKERS = {"rabbitmq": rabbitmq, "redis_streams": redis_streams}


def main(kinds: list[str]) -> None:
    """Print the ratios of sweep to redrive by their medians, for each broker."""
    outbox = ProducerOutbox()
    for kind in kinds:
        queue = f"{kind}-orders"
        with BROKERS[kind](queue) as url:
            measure(outbox, kind=kind, url=url, queue=queue)
    outbox.connection.close()


def measure(outbox: ProducerOutbox, *, kind: str, url: str, queue: str) -> None:
    """Time the outbox sweeper and a redrive operation in turn; print the ratios."""
    from benchmarks import _redrives as redrives

    topic = redrives.topic_on(kind=kind, url=url, queue=queue)
    assert topic.broker is not None
    empty = sweeping(outbox, name=kind, broker=topic.broker.name)
    our_times, redrive_times = list[Times](), list[Times]()
    for turn in range(ROUNDS + 1):
        redrive = redrives.redrive_next_of(
            [redrives.queue_redrive(topic, number=NUMBER)]
        )
        outbox.put_all(queue=queue)
        for times, work in ((redrive_times, redrive), (our_times, empty)):
            both = measured(outbox, work)
            if turn:
                times.append(both)
    for place, what in enumerate(("time", "processor time")):
        mine = statistics.median(both[place] for both in our_times)
        theirs = statistics.median(both[place] for both in redrive_times)
        print(
            f"{kind}, {what}: sweep {NUMBER / mine:,.0f}/s, redrive"
            f" {NUMBER / theirs:,.0f}/s, ratio {theirs / mine:.2f} (at least {LEAST})"
        )


def measured(outbox: ProducerOutbox, work: Callable[[], None]) -> Times:
    """Run some work; return its seconds by the clock and of processors."""
    began, busy = time.perf_counter(), outbox.processor_seconds()
    work()
    took = time.perf_counter() - began
    return took, outbox.processor_seconds() - busy


def sweeping(outbox: ProducerOutbox, *, name: str, broker: str) -> Callable[[], None]:
    """Register the benchmark's outbox with a broker.

    Returns a function that runs its sweeper until all rows are sent.
    """
    from apps.core import clock
    from apps.outbox.outbox_settings_dataclass import OutboxSettings
    from apps.outbox.services.outbox_registration import add_outbox
    from apps.outbox.sweeping.outbox_sweeper import OutboxSweeper
    from benchmarks._redrives import PRINCIPAL

    settings = OutboxSettings(
        url=f"{os.environ['DATABASE_URL']}?sslmode=disable",
        broker=broker,
        schema="shop",
    )
    registered = add_outbox(
        name=name, settings=settings, principal=PRINCIPAL, now=clock.now()
    )

    def empty() -> None:
        sweeper = OutboxSweeper(registered, clock=clock.now)
        sweeper.start()
        outbox.wait_until_sent()
        sweeper.stop()
        if not sweeper.join(30.0):
            raise AssertionError("the sweeper does not end")

    return empty


if __name__ == "__main__":
    with product(durable=True):
        main(sys.argv[1:] or list(BROKERS))
