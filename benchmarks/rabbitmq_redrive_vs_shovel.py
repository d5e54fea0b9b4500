"""A redrive to RabbitMQ against its own shovel, and against pika, on one broker.

All move the same persistent messages of 1 KiB, with confirms. Ours is measured twice:
whole, from Postgres and back to its record, and its publisher alone. Targets of the
whole: a quorum queue at least 0.55 of the shovel, a classic one 0.6; 0.6 of pika
pipelined; 10 times pika that waits for each confirmation.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pika
from pika import spec

from apps.brokers.adapter_contract import Outbound, OutcomeKind
from apps.brokers.adapters.adapter import BrokerSettings
from apps.brokers.adapters.rabbitmq.adapter import ADAPTER
from benchmarks._benchmark_harness import ROUNDS, product, seconds
from tests.brokers.rabbitmq import RabbitMqServer

NUMBER = int(os.environ.get("NUMBER", "5000"))
# Fewer messages, because each waits for its own confirmation.
SINGLY = max(1, NUMBER // 20)
WINDOW = 1_000
BODY = os.urandom(1024)
TARGET, SOURCE = "target", "source"


class Bench:
    def __init__(
        self, server: RabbitMqServer, kind: str, redrive: Callable[[], None]
    ) -> None:
        self.server = server
        self.redrive = redrive
        self.kind = kind
        self.publisher = ADAPTER.publisher(BrokerSettings(url=server.url))
        self.connection = server.connection()
        self.channel = self.connection.channel()

    def empty(self, queue: str) -> None:
        """Delete a RabbitMQ queue and declare it again, empty."""
        self.channel.queue_delete(queue)
        arguments = {"x-queue-type": self.kind}
        self.channel.queue_declare(queue, durable=True, arguments=arguments)

    def publish_with_adapter(self, queue: str = TARGET) -> None:
        """Publish all messages by Poisonweb's RabbitMQ adapter."""
        message = Outbound(topic=queue, body=BODY, headers=((b"trace", b"1"),))
        for _ in range(0, NUMBER, WINDOW):
            outcomes = self.publisher.publish([message] * WINDOW)
            if {outcome.kind for outcome in outcomes} != {OutcomeKind.SENT}:
                raise AssertionError(outcomes)

    def shovel(self) -> None:
        """Move a full queue by RabbitMQ's shovel, until all messages are confirmed."""
        uri = f"{self.server.url}%2F"
        self.server.manage(
            *("PUT", "parameters", "shovel", "/", "bench"),
            value={
                "src-uri": uri,
                "src-queue": SOURCE,
                "src-prefetch-count": WINDOW,
                "src-delete-after": "queue-length",
                "dest-uri": uri,
                "dest-queue": TARGET,
                "ack-mode": "on-confirm",
            },
        )
        while self.length(SOURCE) or self.length(TARGET) < NUMBER:
            time.sleep(0.01)

    def length(self, queue: str) -> int:
        """Return the number of messages in a RabbitMQ queue."""
        answer = self.channel.queue_declare(queue, passive=True)
        return int(answer.method.message_count)

    def pipelined(self) -> None:
        """Publish messages as fast as pika can; wait until all are confirmed."""
        confirmed = 0

        def opened(channel: pika.channel.Channel) -> None:
            channel.confirm_delivery(answered, callback=lambda _: publish(channel))

        def publish(channel: pika.channel.Channel) -> None:
            properties = pika.BasicProperties(delivery_mode=2, headers={"trace": "1"})
            for _ in range(NUMBER):
                channel.basic_publish("", TARGET, BODY, properties, mandatory=True)

        def answered(frame: pika.frame.Method) -> None:
            nonlocal confirmed
            assert isinstance(frame.method, spec.Basic.Ack)
            confirmed = frame.method.delivery_tag
            if confirmed == NUMBER:
                connection.close()

        connection = pika.SelectConnection(
            pika.URLParameters(f"{self.server.url}%2F"),
            on_open_callback=lambda pika_connection: pika_connection.channel(
                on_open_callback=opened
            ),
            on_close_callback=lambda pika_connection, _: pika_connection.ioloop.stop(),
        )
        connection.ioloop.start()
        if confirmed != NUMBER:
            raise AssertionError(confirmed)

    def publish_one_by_one(self) -> None:
        """Publish messages with pika, and wait for each confirmation."""
        channel = self.connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, headers={"trace": "1"})
        for _ in range(SINGLY):
            channel.basic_publish("", TARGET, BODY, properties, mandatory=True)
        channel.close()

    def measure_rate(self, work: Callable[[], None], number: int) -> float:
        """Time a way to publish to RabbitMQ: return its messages a second.

        It moves them into an empty queue.
        """
        self.empty(TARGET)
        if work == self.shovel:
            self.empty(SOURCE)
            self.publish_with_adapter(SOURCE)
        return number / seconds(work)

    def close(self) -> None:
        """Close the RabbitMQ benchmark's connections."""
        self.publisher.close()
        self.connection.close()


def main(server: RabbitMqServer) -> None:
    """Print the ratios of our RabbitMQ adapter to other ways, per kind of queue."""
    from benchmarks import _redrives as redrives

    topic = redrives.topic_on(kind="rabbitmq", url=server.url, queue=TARGET)
    ratios = list[str]()
    for kind in ("quorum", "classic"):
        operations = [
            redrives.queue_redrive(topic, number=NUMBER) for _ in range(ROUNDS + 1)
        ]
        ratios += measure(Bench(server, kind, redrives.redrive_next_of(operations)))
    print("\n".join(ratios))


def measure(bench: Bench) -> list[str]:
    """Time all ways to publish to RabbitMQ in turn; print rates, return the ratios."""
    works = {
        "redrive": (bench.redrive, NUMBER),
        "publisher": (bench.publish_with_adapter, NUMBER),
        "shovel, on-confirm": (bench.shovel, NUMBER),
        "pika, pipelined": (bench.pipelined, NUMBER),
        "pika, a confirmation each": (bench.publish_one_by_one, SINGLY),
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(ROUNDS + 1):
        for name, (work, number) in works.items():
            rate = bench.measure_rate(work, number)
            rates[name] += [rate] if turn else []  # the first is to warm up
    bench.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    figures = (f"{name}: {rate:,.0f}/s" for name, rate in medians.items())
    print(bench.kind, *figures, sep="  ")
    ours = {name: medians.pop(name) for name in ("publisher", "redrive")}
    return [
        f"{bench.kind}: ratio {mine / theirs:.2f} of {name} to {baseline}"
        for name, mine in ours.items()
        for baseline, theirs in medians.items()
    ]


if __name__ == "__main__":
    with (
        product(durable=True),
        tempfile.TemporaryDirectory(prefix="pw-bench-") as folder,
    ):
        plugins = ("rabbitmq_management", "rabbitmq_shovel")
        cores = os.cpu_count() or 1
        server = RabbitMqServer(Path(folder), plugins=plugins, schedulers=cores)
        try:
            main(server)
        finally:
            server.stop()
