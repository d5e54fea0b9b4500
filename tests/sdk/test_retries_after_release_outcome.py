"""What becomes of a message that was released: who tries it again, and when."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest

from poisonguard import BreakerPolicy, Guard, Outcome, RetryPolicy
from poisonguard.errors import Misconfigured
from poisonguard.handling import released_messages_to_retry as keeping
from poisonguard.handling.concurrency_slots_and_suspect_isolation import Gate
from poisonguard.handling.released_messages_to_retry import (
    MESSAGES_LIMIT,
    ReleasedMessage,
    ReleasedMessages,
)
from poisonguard.readers.amps import AmpsReader
from poisonguard.readers.pika import PikaReader
from poisonguard.readers.plain import PlainReader
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.sdk.guard_and_handler_builders import (
    Failing,
    Handler,
    Message,
    guarding,
    message,
)

HANDLED, SKIPPED = Outcome.HANDLED, Outcome.SKIPPED
POISONED, RELEASE = Outcome.POISONED, Outcome.RELEASE
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
# Pauses at the first failure, for a moment.
NERVOUS = BreakerPolicy(in_a_row=1, pause=0.1)


class Settled(list[tuple[str, Outcome]]):
    """What the guard has settled, and on which threads."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()

    def __call__(self, message: Message, outcome: Outcome) -> None:
        self.threads.add(threading.current_thread())
        self.append((message["bookmark"], outcome))


class Redelivered(list[tuple[str, float]]):
    def __call__(self, message: Message, seconds: float) -> None:
        self.append((message["bookmark"], seconds))


@pytest.fixture
def settled() -> Settled:
    return Settled()


@pytest.fixture
def redelivered() -> Redelivered:
    return Redelivered()


# Topics that replay


def test_a_poison_that_was_released_is_reported_when_the_server_is_back(
    server: FakeServer, settled: Settled
) -> None:
    handler = Failing(ValueError(), "b-1")
    wishes = {"reader": PlainReader(replays=True), "hold_for": 0.2, "settle": settled}

    with guarding(server, **wishes) as guard:
        server.stop()
        outcomes = [guard.handle(message(b), handler) for b in ("b-1", "b-2")]
        meanwhile = guard.health()
        server.start()
        server.until(lambda: settled)
        server.until(lambda: not guard.health()["kept"])
        again = guard.handle(message("b-1"), handler)

    assert outcomes == [RELEASE, HANDLED]
    assert (meanwhile["kept"], meanwhile["state"]) == (1, "holding")
    assert "Released messages that wait" in str(meanwhile["warnings"])
    assert settled == [("b-1", POISONED)]
    assert [report["bookmark"] for report in server.reports.failures.values()] == [
        "b-1"
    ]
    assert (again, handler.calls) == (SKIPPED, ["b-1", "b-1", "b-2"])


def test_a_released_message_reruns_on_the_consumers_own_thread(
    server: FakeServer, settled: Settled
) -> None:
    handler = Handler(OSError("away"), OSError("away"))
    wishes: dict[str, Any] = {
        "reader": PlainReader(replays=True),
        "breaker": NERVOUS,
        "hold_for": 0.05,
        "settle": settled,
    }
    numbers = count(2)

    with guarding(server, **wishes) as guard:
        first = guard.handle(message("b-1"), handler)
        server.until(
            lambda: guard.handle(message(f"b-{next(numbers)}"), handler) and settled
        )

    assert first is RELEASE
    assert settled[0][1] is HANDLED
    assert ("b-1", HANDLED) in settled
    assert settled.threads == {threading.main_thread()}
    assert handler.calls.count("b-1") == 3


def test_a_task_tries_again_what_a_task_had_to_release(
    server: FakeServer, settled: Settled
) -> None:
    errors = [OSError("away"), OSError("away")]
    calls: list[str] = []

    async def handler(message: Message) -> None:
        calls.append(message["bookmark"])
        if errors:
            raise errors.pop()

    async def consume(guard: Guard) -> Outcome:
        first = await guard.handle_async(message("b-1"), handler)
        for number in count(2):
            await guard.handle_async(message(f"b-{number}"), handler)
            await asyncio.sleep(0.01)
            if ("b-1", HANDLED) in settled:
                break
        return first

    wishes: dict[str, Any] = {
        "reader": PlainReader(replays=True),
        "breaker": NERVOUS,
        "hold_for": 0.05,
        "settle": settled,
    }
    with guarding(server, **wishes) as guard:
        first = asyncio.run(asyncio.wait_for(consume(guard), 60))

    assert first is RELEASE
    assert calls.count("b-1") == 3


def test_a_released_message_delivered_again_is_not_tried_twice(
    server: FakeServer, settled: Settled
) -> None:
    handler = Failing(ValueError())
    wishes = {"reader": PlainReader(replays=True), "hold_for": 0.1, "settle": settled}

    with guarding(server, **wishes) as guard:
        server.stop()
        first = guard.handle(message("b-1"), handler)
        server.start()
        again = guard.handle(message("b-1"), handler)
        kept_count = guard.health()["kept"]

    # Either may have come first; the first one has reported it.
    assert (first, again, kept_count) == (
        RELEASE,
        POISONED if not settled else SKIPPED,
        0,
    )
    assert len(server.reports.failures) == 1


def test_a_stopping_process_leaves_released_messages_to_the_broker(
    server: FakeServer,
) -> None:
    with guarding(server, reader=PlainReader(replays=True)) as guard:
        server.stop()
        guard.stopping()
        outcome = guard.handle(message(), Failing(ValueError()))
        kept_count = guard.health()["kept"]

    assert (outcome, kept_count) == (RELEASE, 0)


def test_a_message_that_cannot_be_kept_is_held_until_it_is_decided(
    server: FakeServer, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MESSAGES_LIMIT", 1)
    handler = Handler(*[OSError("away")] * 6)
    wishes: dict[str, Any] = {
        "reader": PlainReader(replays=True),
        "breaker": NERVOUS,
        "hold_for": 0.05,
        "settle": settled,
    }
    numbers = count(3)

    with guarding(server, **wishes) as guard:
        outcomes = [guard.handle(message(b), handler) for b in ("b-1", "b-2")]
        server.until(
            lambda: guard.handle(message(f"b-{next(numbers)}"), handler) and settled
        )

    assert outcomes == [RELEASE, HANDLED]
    assert settled == [("b-1", HANDLED)]


def entry(bookmark: str, size: int = 1) -> ReleasedMessage:
    return ReleasedMessage(
        bookmark=bookmark, message=None, handler=Handler(), size=size
    )


def test_the_number_of_released_messages_is_bounded() -> None:
    gate = Gate()
    released_messages = ReleasedMessages(gate)
    entries = [entry(str(n)) for n in range(MESSAGES_LIMIT)]

    results = [released_messages.add(one) for one in [*entries, entry("one more")]]
    released_messages.settled(entries[0])
    then = released_messages.add(entry("one more"))

    assert results == [True] * MESSAGES_LIMIT + [False]
    assert (then, gate.is_open) == (True, False)


def test_a_single_released_message_of_any_size_is_kept() -> None:
    gate = Gate()
    released_messages = ReleasedMessages(gate)

    results = [
        released_messages.add(entry("large", size=2**40)),
        released_messages.add(entry("b-2")),
    ]
    came_again = released_messages.discard_unless_busy("large")

    assert (results, came_again, len(released_messages)) == ([True, False], True, 0)
    assert gate.is_open


def test_a_reused_message_object_is_copied_before_it_is_kept() -> None:
    amps = pytest.importorskip("AMPS")
    reused = amps.Message()
    reused.set_bookmark("1|2|")

    copied = AmpsReader().copy(reused)
    reused.set_bookmark("9|9|")

    assert AmpsReader().bookmark(copied) == "1|2|"


# Brokers that hand a message out again after a time


def test_a_retry_is_left_to_a_broker_that_delays(
    server: FakeServer, redelivered: Redelivered
) -> None:
    handler = Failing(ValueError())
    now = NOON
    policy = RetryPolicy(max_attempts=2, base=60, cap=60)
    wishes: dict[str, Any] = {"policy": policy, "clock": lambda: now}

    with guarding(server, redeliver=redelivered, **wishes) as guard:
        outcomes = [guard.handle(message(), handler) for _ in "ab"]  # once too early
        now += timedelta(seconds=61)
        outcomes.append(guard.handle(message(), handler))

    assert outcomes == [RELEASE, RELEASE, POISONED]
    assert redelivered == [("b-1", 60.0), ("b-1", 59.0)]
    assert handler.calls == ["b-1", "b-1"]


def test_a_thousand_failed_messages_of_one_thread_wait_side_by_side(
    server: FakeServer,
) -> None:
    queue = [(0.0, n) for n in range(1_000)]  # when it is handed out, and which it is
    tried: Counter[str] = Counter()

    def fails_once(each: Message) -> None:
        tried[each["bookmark"]] += 1
        if tried[each["bookmark"]] == 1:
            raise ValueError("the first time")

    def delay(each: Message, seconds: float) -> None:
        heappush(queue, (time.monotonic() + seconds, int(each["bookmark"])))

    policy = RetryPolicy(max_attempts=3, base=1.0, cap=1.0)
    options: dict[str, Any] = {"policy": policy, "breaker": None}
    outcomes: Counter[Outcome] = Counter()
    with guarding(server, redeliver=delay, **options) as guard:
        while queue:
            due_at, number = heappop(queue)
            time.sleep(max(0.0, due_at - time.monotonic()))
            outcomes[guard.handle(message(str(number)), fails_once)] += 1
        retrying = guard.health()["retrying"]

    # One after the other they would have waited a thousand seconds, and for each other.
    assert outcomes == {RELEASE: 1_000, HANDLED: 1_000}
    assert (set(tried.values()), retrying) == ({2}, 0)


class Nameless(PlainReader):
    def has_identity(self, message: Message) -> bool:
        return False


def test_a_message_without_identity_is_retried_in_place(
    server: FakeServer, redelivered: Redelivered
) -> None:
    wishes: dict[str, Any] = {"redeliver": redelivered, "reader": Nameless()}

    with guarding(server, **wishes) as guard:
        outcome = guard.handle(message(), Handler(ValueError()))

    assert (outcome, redelivered) == (HANDLED, [])


def test_a_message_of_rabbitmq_is_known_again_by_its_id() -> None:
    class Properties:
        message_id: str | None = None

    named = Properties()
    named.message_id = "m-1"

    outcomes_of_known = [
        PikaReader().has_identity((None, properties, b""))
        for properties in (Properties(), named)
    ]

    assert outcomes_of_known == [False, True]


def test_an_undecided_message_is_redelivered_too(
    server: FakeServer, redelivered: Redelivered
) -> None:
    with guarding(server, redeliver=redelivered, hold_for=0.1) as guard:
        server.stop()
        undecided = guard.handle(message(), Failing(ValueError()))
        guard.close()
        closed = guard.handle(message("b-2"), Handler())

    assert (undecided, closed) == (RELEASE, RELEASE)
    assert [bookmark for bookmark, _ in redelivered] == ["b-1", "b-2"]


def test_a_broker_that_does_not_take_it_back_is_logged(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_message: Message, _seconds: float) -> None:
        raise OSError("the channel is closed")

    with guarding(server, redeliver=fail) as guard:
        outcome = guard.handle(message(), Handler(ValueError()))

    assert outcome is RELEASE
    assert "the channel is closed" in caplog.text


@pytest.mark.parametrize("name", ["redeliver", "settle"])
def test_a_coroutine_callback_is_refused(name: str) -> None:
    async def call(*_: object) -> None: ...

    options: dict[str, Any] = {"topic": "orders", "consumer_group": "billing"}
    options[name] = call
    with pytest.raises(Misconfigured, match=f"{name} is a coroutine"):
        Guard(url="http://127.0.0.1", api_key=KEY, **options)


def test_an_outcome_says_what_it_asks_for() -> None:
    assert "comes again" in RELEASE.duty
    assert {outcome.duty for outcome in Outcome if outcome.settles} == {"settle it"}
