"""One consumer is sick and one is healthy: no good message is lost to a third one."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from apps.capture.intake import message_or_consumer_at_fault
from apps.capture.models import Guard as GuardRow
from apps.core import clock
from apps.poison.models import Poison, Skip
from poisonguard import BreakerPolicy, Guard, Outcome, RetryPolicy
from poisonguard.readers.plain import PlainReader
from tests.acceptance.web_server_process import Web, api_key
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

SOAK = "SOAK" in os.environ
SHARES = (0.05, 0.2, 0.5, 0.9)
# Messages a minute, and how long they come.
PACES = ((5, 600), (80, 120), (2_000, 60)) if SOAK else ((2_000, 3),)
LONG_AFTER = timedelta(hours=1)
SECONDS = 60.0

Message = dict[str, Any]
Handler = Callable[[Message], None]


@dataclass(kw_only=True)
class HandlingConsumer:
    """A guard that handles every message of a topic, one after the other."""

    guard: Guard
    handler: Handler
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def take(self, message: Message) -> Outcome:
        outcome = self.guard.handle(message, self.handler)
        self.outcomes[message["seq"]] = outcome
        return outcome

    @property
    def counts(self) -> Counter[Outcome]:
        return Counter(self.outcomes.values())


Make = Callable[..., HandlingConsumer]


@pytest.fixture
def consumer(web: Web) -> Iterator[Make]:
    """Give what makes a consumer of `orders` that is let in."""
    key = api_key()
    with ExitStack() as closing:

        def make(name: str, handler: Handler, **options: Any) -> HandlingConsumer:
            guard = Guard(
                topic="orders",
                consumer_group="billing",
                client_name=name,
                url=web.url,
                api_key=key,
                journal=None,
                reader=PlainReader(seq="seq", replays=True),
                policy=RetryPolicy(max_attempts=1),
                **options,
            )
            return HandlingConsumer(guard=closing.enter_context(guard), handler=handler)

        yield make


def message(number: int) -> Message:
    return {"bookmark": f"b-{number}", "seq": number, "body": b"%d" % number}


def healthy(_: Message) -> None: ...


def fails(_: Message) -> None:
    raise ValueError("bad for everybody")


def sick(share: float) -> Handler:
    random = Random(7)

    def handle(_: Message) -> None:
        if random.random() < share:
            raise ConnectionError("the database is away")

    return handle


def in_force() -> set[str]:
    # As if there had been no answer since, and an hour had gone by.
    message_or_consumer_at_fault.make_firm(now=clock.now() + LONG_AFTER)
    skips = Skip.objects.in_force(clock.now())
    return {bytes(value).decode() for value in skips.values_list("value", flat=True)}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("pace", "seconds"), PACES)
def test_no_good_message_is_skipped(
    consumer: Make, share: float, pace: int, seconds: float
) -> None:
    one = consumer("sick", sick(share), breaker=BreakerPolicy(pause=0.5), hold_for=0.1)
    two = consumer("healthy", healthy)
    wait_until(lambda: GuardRow.objects.count() == 2)
    messages = [message(number) for number in range(int(pace * seconds / 60))]

    def feed(one_or_two: HandlingConsumer) -> None:
        began = time.monotonic()
        for number, each in enumerate(messages):
            time.sleep(max(0, began + number * 60 / pace - time.monotonic()))
            one_or_two.take(each)

    ill, well = [threading.Thread(target=feed, args=(each,)) for each in (one, two)]
    ill.start()
    well.start()
    while well.is_alive():
        message_or_consumer_at_fault.make_firm(now=clock.now())
        well.join(timeout=1.0)
    # While it pauses it would go on for long; what it withheld it may report only now,
    # and again: the healthy one is asked again.
    one.guard.close()
    ill.join()
    wait_until(
        lambda: not Skip.objects.active().exists(),
        seconds=SECONDS,
        describe=lambda: list(
            Skip.objects.active().values_list("value", "is_suspected")
        ),
    )
    three = consumer("third", healthy)
    for each in messages:
        three.take(each)

    assert one.counts[Outcome.POISONED] > 0
    assert Poison.objects.filter(suspected=False).count() == 0
    assert in_force() == set()
    assert two.counts == three.counts == {Outcome.HANDLED: len(messages)}


def test_a_good_message_is_not_passed_over_though_the_servers_clock_is_set_forward(
    consumer: Make,
) -> None:
    one, two = consumer("sick", fails), consumer("healthy", healthy)
    wait_until(lambda: GuardRow.objects.count() == 2)
    for each in (one, two):
        each.guard.handle(message(1), healthy)

    two.take(message(7))
    outcome = one.take(message(7))
    message_or_consumer_at_fault.make_firm(now=clock.now() + LONG_AFTER)
    wait_until(lambda: not Skip.objects.active().exists(), seconds=SECONDS)

    assert outcome is Outcome.POISONED
    assert Poison.objects.get().suspected
    assert consumer("third", healthy).take(message(7)) is Outcome.HANDLED


def test_a_message_that_fails_two_consumers_is_skipped_by_the_third(
    consumer: Make,
) -> None:
    one, two = consumer("one", fails), consumer("two", fails)
    three = consumer("three", healthy)
    wait_until(lambda: GuardRow.objects.count() == 3)
    # Who has handled nothing yet says nothing against a message.
    for each in (one, two, three):
        each.guard.handle(message(1), healthy)

    first = one.take(message(7))
    between = three.guard.handle(message(8), healthy)
    second = two.take(message(7))
    began = time.monotonic()
    wait_until(lambda: "b-7" in three.guard.skips.bookmarks)
    took = time.monotonic() - began

    assert (first, between, second) == (
        Outcome.POISONED,
        Outcome.HANDLED,
        Outcome.POISONED,
    )
    assert three.take(message(7)) is Outcome.SKIPPED
    assert took < (2.0 if SOAK else 20.0)


def test_one_consumer_alone_shares_what_it_fails_on_at_once(consumer: Make) -> None:
    def unlucky(each: Message) -> None:
        if each["seq"] % 13 == 0:
            raise ValueError("I'm superstitious")

    one = consumer("one", unlucky)
    outcomes = [one.take(message(number)) for number in range(1, 40)]

    other = consumer("other", healthy)
    later = [other.take(message(number)) for number in range(1, 40)]

    assert outcomes.count(Outcome.POISONED) == 3
    assert later.count(Outcome.SKIPPED) == 3
