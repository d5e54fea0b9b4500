"""Lanes over a broker in memory, and kills between any two of their steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import ParamSpec, TypeVar

import pytest

from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.intake import (
    dead_letter_deduplication,
    requests_from_messages,
    services,
)
from apps.capture.lanes import dead_letter_drain, runner
from apps.capture.lanes.batch_size_and_poll_interval import Timer
from apps.capture.lanes.dead_letter_drain import Drain
from apps.capture.lanes.observe_only_lane import Observer
from apps.capture.models import Lane, Mode
from apps.core import clock
from tests import in_memory_queue_broker
from tests.in_memory_queue_broker import KIND
from tests.registered_brokers import SYSTEM, broker_named

P = ParamSpec("P")
R = TypeVar("R")


class Killed(BaseException):
    """A kill -9, seen from inside the process."""


class Death:
    """Kills at step `at`; `steps` counts the steps so far."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            raise Killed

    def around(self, work: Callable[P, R]) -> Callable[P, R]:
        def mortal(*args: P.args, **kwargs: P.kwargs) -> R:
            self.step()
            result = work(*args, **kwargs)
            self.step()
            return result

        return mortal


@contextmanager
def dying(at: int) -> Iterator[Death]:
    """Kill the lane before or after a step of draining that leaves this process."""
    death = Death()
    death.at = at
    with pytest.MonkeyPatch.context() as patch:
        for place, name in (
            (services, "write"),
            (requests_from_messages, "take"),
            # Between the deliveries of a batch and the rows that recognize them.
            (requests_from_messages, "digest_of_delivery"),
            (in_memory_queue_broker.Publisher, "publish"),
            (in_memory_queue_broker.Reader, "acknowledge"),
            (dead_letter_deduplication, "delete_acknowledged"),
            (dead_letter_drain, "count_captured"),
        ):
            patch.setattr(place, name, death.around(getattr(place, name)))
        yield death


def topic_on_queues(
    now: datetime, *, mode: Mode = Mode.CAPTURE, name: str = "mail"
) -> Topic:
    """Create a topic of the broker in memory, with its lane."""
    broker = broker_named("queues", kind=KIND, url="queues://here", now=now)
    topic = brokers.register_topic(
        name=name,
        broker=broker,
        dead_letter_queue=f"{name}-dead",
        policy={"max_dequeue_count": 5, "visibility_timeout": 30.0},
        actor=SYSTEM.actor,
        now=now,
    )
    tee_queue = f"{name}-copies" if mode is Mode.TEE else ""
    Lane.objects.create(topic=topic, mode=mode.value, tee_queue=tee_queue)
    return topic


def request_topic_on_queues(now: datetime, *endpoints: str) -> Topic:
    """Create a topic of the broker in memory whose messages are requests."""
    topic = topic_on_queues(now, name="requests")
    Topic.objects.filter(pk=topic.pk).update(
        dead_letter_queue="requests", request_endpoints=list(endpoints)
    )
    return Topic.objects.select_related("broker").get(pk=topic.pk)


def draining(topic: Topic, now: datetime, timer: Timer = lambda: 0.0) -> Drain:
    lane = Lane.objects.possible().get(pk=topic.pk)
    return Drain(lane=lane, clock=lambda: now, timer=timer)


def watching_lane(topic: Topic, now: datetime, timer: Timer) -> Observer:
    lane = Lane.objects.possible().get(pk=topic.pk)
    return Observer(lane=lane, clock=lambda: now, timer=timer)


def drain_all(topic: Topic, now: datetime, *, at_once: int = 500) -> None:
    with draining(topic, now) as work:
        work.size.value = at_once
        while work.drain_batch(wait=0.0):
            work.size.value = at_once


@contextmanager
def serving() -> Iterator[None]:
    """Run all lanes in this process."""
    stop = threading.Event()
    process = threading.Thread(
        target=runner.serve, kwargs={"stop": stop, "clock": clock.now}
    )
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(timeout=60)
    assert not process.is_alive()
