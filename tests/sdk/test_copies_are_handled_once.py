"""The window in memory: which copies are passed over, and which are not."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poisonguard import BreakerPolicy, Guard, Misconfigured, Outcome, RetryPolicy
from poisonguard.dedupe import MemoryWindow
from poisonguard.dedupe.memory import MemoryOnce
from poisonguard.dedupe.once import Copy
from poisonguard.readers.pika import PikaReader
from poisonguard.readers.plain import PlainReader
from poisonguard.readers.redis_streams import RedisStreamsReader
from tests.manual_clock import ManualClock
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.sdk.guard_and_handler_builders import (
    REDRIVE,
    Failing,
    Handler,
    Message,
    guarding,
    message,
    redriven,
)

HANDLED, POISONED, RELEASE = Outcome.HANDLED, Outcome.POISONED, Outcome.RELEASE
SKIPPED = Outcome.SKIPPED
OTHER_REDRIVE = REDRIVE.replace("123e4567", "00000000")
TIMEOUT = 60.0
# Who fails so uses up no attempts of its copies.
FATAL = RetryPolicy(max_attempts=5, fatal=(ValueError,))


def facts(guard: Guard) -> dict[str, Any]:
    section: Any = guard.health()["dedupe"]
    return dict(section)


@contextmanager
def deduping(server: FakeServer, **options: Any) -> Iterator[Guard]:
    with guarding(server, **{"dedupe": MemoryWindow(), **options}) as guard:
        yield guard


def copies(*bookmarks: str, message_id: str = "m-1") -> list[Message]:
    return [message(bookmark, message_id=message_id) for bookmark in bookmarks]


# What is a copy


def test_a_copy_of_what_was_handled_is_passed_over_and_counted(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="poisonguard")
    handler = Handler()

    with deduping(server) as guard:
        outcomes = [guard.handle(copy, handler) for copy in copies("b-1", "b-2")]
        other = guard.handle(message("b-3", message_id="m-2"), handler)
        counts = facts(guard)

    assert (outcomes, other) == ([HANDLED, SKIPPED], HANDLED)
    assert handler.calls == ["b-1", "b-3"]
    assert counts == {"duplicates": 1, "without_id": 0, "remembered": 2}
    assert "message 'b-2' of orders is a copy of one that is settled" in caplog.text
    assert (server.reports.totals()["handled"], server.reports.totals()["skipped"]) == (
        2,
        1,
    )


def test_without_a_window_copies_are_handled_and_ids_are_not_read(
    server: FakeServer,
) -> None:
    messages: list[Message] = []

    class Asking(PlainReader):
        def message_id(self, message: Any) -> str | None:
            messages.append(message)
            return super().message_id(message)

    handler = Handler()
    numbered = [{**copy, "seq": n} for n, copy in enumerate(copies("b-1", "b-2"))]

    with guarding(server, reader=Asking(seq="seq")) as guard:
        guard.handle({**message(), "seq": 7}, handler)  # the first goes another way
        messages.clear()
        outcomes = [guard.handle(copy, handler) for copy in numbered]
        health = guard.health()

    assert outcomes == [HANDLED, HANDLED]
    assert health["dedupe"] is None
    assert messages == []


def test_a_copy_of_what_failed_is_handled(server: FakeServer) -> None:
    with deduping(server) as guard:
        first, again = copies("b-1", "b-2")
        outcomes = [
            guard.handle(first, Failing(ValueError())),
            guard.handle(again, Handler()),
            guard.handle(first, Handler()),
        ]

    assert outcomes == [POISONED, HANDLED, SKIPPED]


def test_a_copy_of_what_was_released_is_handled(server: FakeServer) -> None:
    with deduping(server, redeliver=lambda *_: None) as guard:
        first, again = copies("b-1", "b-2")
        outcomes = [
            guard.handle(first, Failing(OSError("once"))),
            guard.handle(again, Handler()),
            guard.handle(first, Handler()),
        ]

    assert outcomes == [RELEASE, HANDLED, SKIPPED]


def test_a_retry_is_no_copy(server: FakeServer) -> None:
    handler = Handler(OSError("once"))

    with deduping(server) as guard:
        outcome = guard.handle(message(message_id="m-1"), handler)

    assert (outcome, handler.calls) == (HANDLED, ["b-1", "b-1"])


def test_what_is_requeued_is_a_copy_of_the_same_redrive_alone(
    server: FakeServer,
) -> None:
    handler = Handler()
    other = {"x-poisonweb-redrive": OTHER_REDRIVE}
    messages = [
        message("b-1", message_id="m-1"),
        redriven("b-2", message_id="m-1"),
        redriven("b-3", message_id="m-1"),
        {**redriven("b-4", message_id="m-1"), "headers": other},
        message("b-5", message_id="m-1"),
        message("b-6", message_id="m-1", headers={"x-poisonweb-redrive": "forged"}),
    ]

    with deduping(server) as guard:
        outcomes = [guard.handle(each, handler) for each in messages]
        server.until(lambda: len(server.reports.confirmations) == 2)

    assert outcomes == [HANDLED, HANDLED, SKIPPED, HANDLED, SKIPPED, SKIPPED]
    assert handler.calls == ["b-1", "b-2", "b-4"]


@pytest.mark.parametrize("message_id", [None, ""])
def test_without_a_message_id_copies_are_handled_with_one_warning(
    server: FakeServer, caplog: pytest.LogCaptureFixture, message_id: str | None
) -> None:
    handler, one_message = Handler(), message("b-1", message_id=message_id)

    with deduping(server) as guard:
        outcomes = [guard.handle(one_message, handler) for _ in range(3)]
        health, counts = guard.health(), facts(guard)

    assert outcomes == [HANDLED] * 3
    assert counts == {"duplicates": 0, "without_id": 3, "remembered": 0}
    assert caplog.text.count("without a message id") == 1
    assert "cannot be known: 3." in str(health["warnings"])


def test_by_bookmark_a_message_without_id_is_recognised_when_redelivered(
    server: FakeServer,
) -> None:
    handler = Handler()
    messages = [
        message("b-1"),
        message("b-1"),
        message("b-2"),
        redriven("b-2"),
        message("b-3", message_id="b-1"),
        message("b-4", message_id="b-1"),
    ]

    with deduping(server, dedupe=MemoryWindow(by_bookmark=True)) as guard:
        outcomes = [guard.handle(each, handler) for each in messages]

    assert outcomes == [HANDLED, SKIPPED, HANDLED, HANDLED, HANDLED, SKIPPED]


def test_an_entry_of_redis_that_is_claimed_again_is_known_by_its_bookmark(
    server: FakeServer,
) -> None:
    first = int(time.time() * 1_000)  # what is old expires
    entries = [(f"{first + n}-0", {b"body": b"{}"}) for n in (0, 1, 0)]
    options: dict[str, Any] = {
        "reader": RedisStreamsReader(),
        "dedupe": MemoryWindow(by_bookmark=True),
    }

    with deduping(server, **options) as guard:
        outcomes = [guard.handle(entry, lambda _: None) for entry in entries]

    assert outcomes == [HANDLED, HANDLED, SKIPPED]


def test_messages_of_rabbitmq_are_known_by_their_message_id(server: FakeServer) -> None:
    messages = [
        (
            SimpleNamespace(consumer_tag="c", delivery_tag=tag),
            SimpleNamespace(message_id=message_id, headers=None, timestamp=None),
            b"{}",
        )
        for tag, message_id in enumerate(["m-1", "m-2", "m-1", None, None], start=1)
    ]

    with deduping(server, reader=PikaReader()) as guard:
        outcomes = [guard.handle(each, lambda _: None) for each in messages]

    assert outcomes == [HANDLED, HANDLED, SKIPPED, HANDLED, HANDLED]


def test_by_bookmark_a_message_without_identity_is_not_recognised(
    server: FakeServer,
) -> None:
    class Reader(PlainReader):
        def has_identity(self, message: Any) -> bool:
            return False

    window = MemoryWindow(by_bookmark=True)
    with deduping(server, reader=Reader(), dedupe=window) as guard:
        outcomes = [guard.handle(message(), Handler()) for _ in range(2)]
        counts = facts(guard)

    assert outcomes == [HANDLED, HANDLED]
    assert counts["without_id"] == 2


def refuse(_: object) -> str:
    raise LookupError


@pytest.mark.parametrize(
    ("method", "tell"),
    [
        ("message_id", refuse),
        ("redrive", refuse),
        ("message_id", lambda _: 7),
        ("message_id", lambda _: b"m-1"),
        ("redrive", lambda _: b"r-1"),
    ],
    ids=["no id", "no redrive", "a number", "bytes", "a redrive of bytes"],
)
def test_a_message_whose_id_cannot_be_read_is_no_copy(
    server: FakeServer, method: str, tell: Callable[[object], object]
) -> None:
    reader, handler = PlainReader(seq="seq"), Handler()
    messages = [{**copy, "seq": 0} for copy in copies("b-1", "b-1")]

    with deduping(server, reader=reader) as guard:
        # From the second message on, only the window reads these.
        first = guard.handle({**message("b-0", message_id="m-0"), "seq": 1}, handler)
        setattr(reader, method, tell)
        outcomes = [guard.handle(copy, handler) for copy in messages]

    assert [first, *outcomes] == [HANDLED] * 3


def test_ids_of_a_megabyte_cost_no_more_than_others(server: FakeServer) -> None:
    long = "x" * 2**20
    messages = [
        message(f"b-{n}", message_id=long + end) for n, end in enumerate("aab\ud800")
    ]
    handler = Handler()

    with deduping(server) as guard:
        outcomes = [guard.handle(each, handler) for each in messages]
        once: Any = guard._running and guard._running.once

    assert outcomes == [HANDLED, SKIPPED, HANDLED, HANDLED]
    assert {len(key) for key in once._ends} == {16}


def test_guards_that_share_a_window_know_their_own_messages(server: FakeServer) -> None:
    window, one_message = MemoryWindow(), message(message_id="m-1")

    with (
        guarding(server, dedupe=window) as one,
        guarding(server, dedupe=window, topic="invoices") as other,
    ):
        outcomes = [guard.handle(one_message, Handler()) for guard in (one, other, one)]

    assert outcomes == [HANDLED, HANDLED, SKIPPED]


def test_a_wrapped_handler_is_run_once(server: FakeServer) -> None:
    ran: list[str] = []

    with deduping(server) as guard:

        @guard.wrap
        def handle(message: Message) -> None:
            ran.append(message["bookmark"])

        @guard.wrap
        async def handle_async(message: Message) -> None:
            ran.append(message["bookmark"])

        loud = guard(handle, reraise=True)
        first, again = copies("b-1", "b-2")
        outcomes = [handle(first), loud(again), asyncio.run(handle_async(again))]

    assert outcomes == [HANDLED, SKIPPED, SKIPPED]
    assert ran == ["b-1"]


def test_a_copy_says_nothing_about_whether_a_paused_guard_may_go_on(
    server: FakeServer,
) -> None:
    breaker = BreakerPolicy(in_a_row=1, pause=0.01)

    with deduping(server, breaker=breaker, hold_for=10) as guard:
        first, again = copies("b-1", "b-2")
        handled = guard.handle(first, Handler())
        released = guard.handle(message("b-3"), Failing(ValueError()))
        copy = guard.handle(again, Handler())
        state = guard.health()["state"]

    assert (handled, released, copy) == (HANDLED, RELEASE, SKIPPED)
    assert state == "paused"


def test_a_released_message_handled_later_is_recognised(server: FakeServer) -> None:
    settled: dict[str, Outcome] = {}
    options: dict[str, Any] = {
        "reader": PlainReader(replays=True),
        "breaker": BreakerPolicy(in_a_row=1, pause=0.01),
        "hold_for": 0.05,
        "settle": lambda message_done, outcome: settled.update(
            {message_done["bookmark"]: outcome}
        ),
    }
    handler, numbers = Handler(OSError("away"), OSError("away")), count(10)

    with deduping(server, **options) as guard:
        first, again = copies("b-1", "b-2")
        released = guard.handle(first, handler)
        server.until(
            lambda: guard.handle(message(f"b-{next(numbers)}"), handler) and settled
        )
        copy = guard.handle(again, handler)

    assert (released, settled["b-1"], copy) == (RELEASE, HANDLED, SKIPPED)


# Copies in flight


class BlockingHandler(Handler):
    """Stays in its first message until it is let go."""

    def __init__(self, *errors: BaseException | None) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.ended: list[str] = []
        self._final_errors = list(errors)

    def __call__(self, message: Message) -> None:
        super().__call__(message)
        self.has_begun.set()
        assert self.may_end.wait(TIMEOUT)
        self.ended.append(message["bookmark"])
        if self._final_errors and (error := self._final_errors.pop(0)):
            raise error


class HandlingThread(threading.Thread):
    """Handles one message on a thread of its own."""

    def __init__(self, guard: Guard, message: Message, handler: Handler) -> None:
        super().__init__()
        self._handle = lambda: guard.handle(message, handler)
        self.outcome: Outcome | None = None
        self.start()

    def run(self) -> None:
        self.outcome = self._handle()

    def end(self) -> Outcome | None:
        self.join(TIMEOUT)
        return self.outcome


@pytest.mark.parametrize(
    ("error", "outcomes", "ran"),
    [
        (None, (HANDLED, SKIPPED), ["b-1"]),
        (ValueError(), (POISONED, HANDLED), ["b-1", "b-2"]),
    ],
)
def test_a_copy_waits_for_the_one_that_runs_and_takes_no_slot_meanwhile(
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
    outcomes: tuple[Outcome, Outcome],
    ran: list[str],
) -> None:
    fatal: dict[str, Any] = {"policy": FATAL}
    handler, waits = BlockingHandler(error), threading.Event()
    options: dict[str, Any] = {"keep_alive": lambda _: waits.set(), "lease": 0.1}

    with deduping(server, hold_for=TIMEOUT, **fatal, **options) as guard:
        first = HandlingThread(guard, copies("b-1")[0], handler)
        assert handler.has_begun.wait(TIMEOUT)
        second = HandlingThread(guard, copies("b-2")[0], handler)
        assert waits.wait(TIMEOUT)
        running = guard.health()["in_flight"]
        handler.may_end.set()
        ends = (first.end(), second.end())

    assert ends == outcomes
    assert handler.calls == ran
    assert running == 1


@pytest.mark.parametrize("redelivers", [False, True])
def test_a_copy_does_not_wait_for_ever_and_is_not_dropped(
    server: FakeServer, redelivers: bool
) -> None:
    given_back: list[float] = []
    options: dict[str, Any] = {"hold_for": 0.1}
    if redelivers:
        options = {"redeliver": lambda _, seconds: given_back.append(seconds)}
    handler = BlockingHandler()

    with deduping(server, **options) as guard:
        first = HandlingThread(guard, copies("b-1")[0], handler)
        assert handler.has_begun.wait(TIMEOUT)
        released = guard.handle(copies("b-2")[0], handler)
        handler.may_end.set()
        handled = first.end()
        again = guard.handle(copies("b-2")[0], handler)

    assert (released, handled, again) == (RELEASE, HANDLED, SKIPPED)
    assert handler.calls == ["b-1"]
    assert [seconds > 0 for seconds in given_back] == [True] * redelivers


def test_of_many_copies_at_once_one_runs(server: FakeServer) -> None:
    ran: Counter[str] = Counter()
    ids = [f"m-{n}" for n in range(100)]
    together = threading.Barrier(8)
    outcomes: Counter[Outcome] = Counter()
    lock = threading.Lock()

    def handler(one_message: Message) -> None:
        with lock:
            ran[one_message["message_id"]] += 1

    def work(thread: int) -> None:
        for message_id in ids:
            together.wait(TIMEOUT)
            one_message = message(f"{message_id}/{thread}", message_id=message_id)
            outcome = guard.handle(one_message, handler)
            with lock:
                outcomes[outcome] += 1

    with deduping(server, hold_for=TIMEOUT) as guard:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert ran == dict.fromkeys(ids, 1)
    assert outcomes == {HANDLED: 100, SKIPPED: 700}


@pytest.mark.parametrize(
    ("ends", "outcomes"),
    [
        ("well", [HANDLED, SKIPPED]),
        ("with an error", [POISONED, HANDLED]),
        ("cancelled", [None, HANDLED]),
    ],
)
def test_a_task_waits_for_the_copy_that_another_task_runs(
    server: FakeServer, ends: str, outcomes: list[Outcome | None]
) -> None:
    errors = iter([ValueError()] if ends == "with an error" else [])

    async def main(guard: Guard) -> list[Outcome | None]:
        has_begun, may_end = asyncio.Event(), asyncio.Event()

        async def handler(_: Message) -> None:
            has_begun.set()
            await may_end.wait()
            for error in errors:
                raise error

        one, other = copies("b-1", "b-2")
        first = asyncio.create_task(guard.handle_async(one, handler))
        await has_begun.wait()
        second = asyncio.create_task(guard.handle_async(other, handler))
        await asyncio.sleep(0)
        if ends == "cancelled":
            first.cancel()
        may_end.set()
        done = await asyncio.gather(first, second, return_exceptions=True)
        return [end if isinstance(end, Outcome) else None for end in done]

    with deduping(server, hold_for=TIMEOUT, policy=FATAL) as guard:
        actual = asyncio.run(asyncio.wait_for(main(guard), TIMEOUT))

    assert actual == outcomes


# How much is remembered


@given(
    events=st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 4])), max_size=60
    )
)
def test_the_last_messages_are_remembered_for_their_time(
    events: list[tuple[int, int]],
) -> None:
    clock, window = ManualClock(now=0.0), MemoryWindow(messages=3, age=10)
    once = MemoryOnce(PlainReader(), window, clock=clock)
    expected: OrderedDict[int, float] = OrderedDict()

    for number, seconds in events:
        clock.now += seconds
        for old in [old for old, at in expected.items() if at + 10 <= clock.now]:
            del expected[old]
        ran: list[Message] = []
        try:
            once.run(ran.append, message(message_id=f"m-{number}"))
        except Copy:
            assert number in expected
        else:
            assert ran
            assert number not in expected
            expected[number] = clock.now
            if len(expected) > 3:
                expected.popitem(last=False)

        assert len(once._ends) == len(once._order) <= 3


# Forks


def test_a_forked_child_knows_what_its_parent_had_handled(server: FakeServer) -> None:
    with deduping(server) as guard:
        first, again = copies("b-1", "b-2")
        guard.handle(first, Handler())
        guard.handle(again, Handler())
        child = os.fork()
        if child == 0:
            new = message("b-3", message_id="m-3")
            outcomes = [guard.handle(each, Handler()) for each in (again, new)]
            is_right = outcomes == [SKIPPED, HANDLED]
            counts_match = facts(guard) == {
                "duplicates": 1,
                "without_id": 0,
                "remembered": 2,
            }
            os._exit(0 if is_right and counts_match else 1)
        _, status = os.waitpid(child, 0)
        here = guard.handle(message("b-3", message_id="m-3"), Handler())

    assert os.waitstatus_to_exitcode(status) == 0
    assert here is HANDLED


def test_a_forked_child_waits_neither_for_a_lock_nor_for_a_copy_of_its_parents(
    server: FakeServer,
) -> None:
    handler = BlockingHandler()

    with deduping(server, hold_for=0.5) as guard:
        first = HandlingThread(guard, copies("b-1")[0], handler)
        assert handler.has_begun.wait(TIMEOUT)
        once: Any = guard._running and guard._running.once
        with once._lock:
            child = os.fork()
        if child == 0:
            outcome = guard.handle(copies("b-2")[0], Handler())
            os._exit(0 if outcome is HANDLED else 1)
        _, status = os.waitpid(child, 0)
        handler.may_end.set()
        first.end()

    assert os.waitstatus_to_exitcode(status) == 0


def test_a_child_that_is_forked_while_another_thread_remembers_goes_on(
    server: FakeServer,
) -> None:
    with deduping(server, dedupe=MemoryWindow(messages=1)) as guard:
        guard.handle(copies("b-1")[0], Handler())
        once: Any = guard._running and guard._running.once
        once._order.appendleft(b"not in the other yet")
        child = os.fork()
        if child == 0:
            new = message("b-2", message_id="m-2")
            outcomes = [guard.handle(new, Handler()) for _ in range(2)]
            os._exit(0 if outcomes == [HANDLED, SKIPPED] else 1)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


# What it is made with


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"messages": 0}, "messages is 0: give a whole number"),
        ({"messages": True}, "messages is True"),
        ({"messages": 1e3}, "messages is 1000.0"),
        ({"messages": 10**9}, "from 1 to 10000000"),
        ({"age": 0}, "age is 0: give seconds, more than 0"),
        ({"age": float("nan")}, "age is nan"),
        ({"age": float("inf")}, "age is inf"),
        ({"age": "1h"}, "age is '1h'"),
    ],
)
def test_unusable_arguments_of_a_window_are_refused(
    members: dict[str, Any], says: str
) -> None:
    with pytest.raises(Misconfigured, match=says):
        MemoryWindow(**members)


@pytest.mark.parametrize("dedupe", [True, MemoryWindow, 100])
def test_a_dedupe_that_is_no_window_is_refused(
    server: FakeServer, dedupe: object
) -> None:
    says = r"dedupe is .*: give a MemoryWindow\(\)"

    with pytest.raises(Misconfigured, match=says), guarding(server, dedupe=dedupe):
        pass
