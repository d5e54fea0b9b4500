"""The second half of a large redrive to Redis Streams, against its first half.

Postgres is durable, as `make run` has it. A redrive's rate counts from the first
message in the stream, when a worker has taken hold of all, to the last one. Memory is
that of the process that redrives, after a tenth of the messages and at the end.
Targets, for a million messages (NUMBER=1000000; 15 minutes, 15 GB): the second half is
sent at 0.9 of the rate of the first at least, and memory does not grow.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import redis

from benchmarks._benchmark_harness import product, resident_megabytes

NUMBER = int(os.environ.get("NUMBER", "20000"))
QUEUE = "orders"
SAMPLES_EVERY = 0.05  # seconds


class RedriveSample(NamedTuple):
    """What a redrive has done at a moment: messages sent, its process's memory."""

    second: float
    messages: int
    megabytes: float


@contextmanager
def samples_of(url: str) -> Iterator[list[RedriveSample]]:
    """Sample a redrive in this process until the end of the block; yield samples."""
    samples = list[RedriveSample]()
    end = threading.Event()

    def add() -> None:
        messages = client.xlen(QUEUE)
        samples.append(
            RedriveSample(time.perf_counter(), messages, resident_megabytes())
        )

    def watch() -> None:
        while not end.wait(SAMPLES_EVERY):
            add()

    with redis.Redis.from_url(url) as client:
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield samples
        finally:
            end.set()
            thread.join()
        add()


def first_with(samples: list[RedriveSample], *, messages: float) -> RedriveSample:
    """Return the first sample of a redrive in which so many messages were sent."""
    return next(sample for sample in samples if sample.messages >= messages)


def main() -> None:
    """Redrive once; print the ratio of the two halves, and the memory."""
    from benchmarks import _redrives as redrives

    url = os.environ["POISONWEB_REDIS_URL"]
    topic = redrives.topic_on(kind="redis_streams", url=url, queue=QUEUE)
    redrive = redrives.redrive_next_of([redrives.queue_redrive(topic, number=NUMBER)])
    with samples_of(url) as samples:
        redrive()
    start = first_with(samples, messages=1)
    half = first_with(samples, messages=NUMBER / 2)
    end = first_with(samples, messages=NUMBER)
    first = (half.messages - start.messages) / (half.second - start.second)
    second = (end.messages - half.messages) / (end.second - half.second)
    print(f"first half: {first:,.0f}/s, second half: {second:,.0f}/s", end=", ")
    print(f"ratio {second / first:.2f} (target 0.9)")
    early, late = first_with(samples, messages=NUMBER / 10), samples[-1]
    print(f"memory: {early.megabytes:.0f} MB after a tenth", end=", ")
    print(f"{late.megabytes:.0f} MB at the end", end=", ")
    print(f"ratio {late.megabytes / early.megabytes:.2f} (target 1)")


if __name__ == "__main__":
    with product(durable=True):
        main()
