"""The shapes a guard comes in: wrapper, decorator, threads, tasks, forked children."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from poisonguard import Guard, Misconfigured, Outcome, RetryPolicy
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.sdk.guard_and_handler_builders import (
    REDRIVE,
    Failing,
    Handler,
    Message,
    guarding,
    message,
    redriven,
)

HANDLED, SKIPPED = Outcome.HANDLED, Outcome.SKIPPED
POISONED, RELEASE = Outcome.POISONED, Outcome.RELEASE


def unstarted(server: FakeServer, **options: Any) -> Guard:
    return Guard(
        topic="orders",
        consumer_group="billing",
        client_name="billing-1",
        url=server.url,
        api_key=KEY,
        journal=None,
        policy=RetryPolicy(max_attempts=2, base=0, cap=0),
        **options,
    )


def test_a_wrapped_handler_answers_with_the_outcome(server: FakeServer) -> None:
    server.skip_list.add(kind="bookmark", value="b-2")

    with guarding(server) as guard:
        handler = guard(Failing(ValueError(), "b-3"))
        outcomes = [handler(message(f"b-{n}")) for n in (1, 2, 3)]

    assert outcomes == [HANDLED, SKIPPED, POISONED]


def test_a_wrapped_handler_reraises_with_reraise(server: FakeServer) -> None:
    with guarding(server) as guard:
        handler = guard(Failing(ValueError("unlucky"), "b-1"), reraise=True)
        with pytest.raises(ValueError, match="unlucky"):
            handler(message("b-1"))
        outcome = handler(message("b-2"))

    assert outcome is HANDLED
    assert len(server.reports.failures) == 1


def test_an_exception_followed_by_a_success_is_not_reraised(server: FakeServer) -> None:
    with guarding(server) as guard:
        outcome = guard(Handler(OSError()), reraise=True)(message())

    assert outcome is HANDLED


def test_a_decorated_function_keeps_its_name_and_its_kind(server: FakeServer) -> None:
    guard = unstarted(server)

    @guard.wrap
    def handle(order: Message) -> None:
        """Handle an order."""
        calls.append(order["bookmark"])

    @guard.wrap
    async def handle_later(order: Message) -> None:
        await asyncio.sleep(0)
        calls.append(order["bookmark"])

    async def both() -> list[Outcome]:
        async with guard:
            return [handle(message("b-1")), await handle_later(message("b-2"))]

    calls: list[str] = []
    outcomes = asyncio.run(both())

    assert (outcomes, calls) == ([HANDLED, HANDLED], ["b-1", "b-2"])
    assert (handle.__name__, handle.__doc__) == ("handle", "Handle an order.")
    assert inspect.iscoroutinefunction(handle_later)
    assert not inspect.iscoroutinefunction(handle)


def test_an_object_with_an_awaitable_call_is_a_handler_too(server: FakeServer) -> None:
    class Later:
        async def __call__(self, _message: Message) -> None:
            await asyncio.sleep(0)
            raise ValueError("unlucky")

    async def main() -> None:
        async with unstarted(server) as guard:
            await guard(Later(), reraise=True)(message())

    with pytest.raises(ValueError, match="unlucky"):
        asyncio.run(main())

    assert len(server.reports.failures) == 1


def test_tasks_are_handled_like_threads(server: FakeServer) -> None:
    server.skip_list.add(kind="bookmark", value="b-2")
    handler = Failing(ValueError(), "b-3")

    async def handle(one_message: Message) -> None:
        await asyncio.sleep(0)
        handler(one_message)

    async def main() -> list[Outcome]:
        messages = [message("b-1"), message("b-2"), message("b-3"), redriven()]
        async with unstarted(server) as guard:
            return [await guard.handle_async(m, handle) for m in messages]

    outcomes = asyncio.run(main())
    server.until(lambda: server.reports.confirmations)

    assert outcomes == [HANDLED, SKIPPED, POISONED, HANDLED]
    assert set(server.reports.confirmations) == {REDRIVE}
    assert server.reports.totals()["handled"] == 2


def test_the_first_awaited_message_starts_an_unstarted_guard(
    server: FakeServer,
) -> None:
    async def handle(_message: Message) -> None:
        await asyncio.sleep(0)

    guard = unstarted(server)
    outcome = asyncio.run(guard(handle)(message()))
    guard.close()

    assert outcome is HANDLED


def test_a_thousand_failed_tasks_wait_for_their_retry_side_by_side(
    server: FakeServer,
) -> None:
    failed: set[str] = set()

    async def fail_once(one_message: Message) -> None:
        await asyncio.sleep(0)
        if one_message["bookmark"] not in failed:
            failed.add(one_message["bookmark"])
            everybody.release()
            raise OSError
        # All have failed before the first is tried again: none has waited for another.
        assert everybody.acquire(timeout=0)

    async def main() -> list[Outcome]:
        policy = RetryPolicy(base=3, cap=3)
        async with guard_of(policy) as guard:
            messages = (message(f"b-{n}") for n in range(1_000))
            return await asyncio.gather(
                *(guard.handle_async(m, fail_once) for m in messages)
            )

    def guard_of(policy: RetryPolicy) -> Guard:
        return Guard(
            topic="orders",
            consumer_group="billing",
            url=server.url,
            api_key=KEY,
            journal=None,
            policy=policy,
            concurrency=10,
        )

    everybody = threading.Semaphore(0)
    outcomes = asyncio.run(main())

    assert outcomes == [HANDLED] * 1_000


def test_a_cancelled_task_charges_no_message(server: FakeServer) -> None:
    async def forever(_message: Message) -> None:
        running.set()
        await asyncio.sleep(3600)

    async def main() -> dict[str, object]:
        async with unstarted(server) as guard:
            task = asyncio.create_task(guard.handle_async(message(), forever))
            await running.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return guard.health()

    running = asyncio.Event()
    health = asyncio.run(main())

    assert (health["suspects"], health["in_flight"]) == (0, 0)
    assert server.reports.failures == {}


def test_a_task_that_waits_is_released_when_the_guard_is_closed(
    server: FakeServer,
) -> None:
    async def fail(_message: Message) -> None:
        await asyncio.sleep(0)
        raise OSError

    async def main() -> Outcome:
        policy = RetryPolicy(base=60, cap=60)
        with guarding(server, policy=policy, keep_alive=kept_alive.append) as guard:
            task = asyncio.create_task(guard.handle_async(message(), fail))
            while not guard.health()["suspects"]:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(guard.close)
            return await task

    kept_alive: list[Message] = []
    assert asyncio.run(main()) is RELEASE
    assert kept_alive == []  # not even until it would have been kept alive


def test_a_coroutine_keep_alive_is_refused(server: FakeServer) -> None:
    async def keep_alive(_message: Message) -> None:
        await asyncio.sleep(0)

    with pytest.raises(Misconfigured, match="give a plain function"):
        unstarted(server, keep_alive=keep_alive)


def test_at_most_concurrency_messages_are_in_flight(
    server: FakeServer,
) -> None:
    most = now = 0
    lock = threading.Lock()

    def handle(_message: Message) -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        together.wait(timeout=60)
        time.sleep(0.05)  # in which a fourth one could come
        with lock:
            now -= 1

    together = threading.Barrier(3)
    with guarding(server, concurrency=3) as guard:
        threads = [
            threading.Thread(target=guard.handle, args=(message(f"b-{n}"), handle))
            for n in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert most == 3
    assert server.reports.totals()["handled"] == 12


def test_counts_of_many_threads_are_all_reported(server: FakeServer) -> None:
    def work(guard: Guard) -> None:
        for n in range(500):
            guard.handle(message(f"b-{n}"), handler)

    handler = Handler()
    with guarding(server) as guard:
        threads = [threading.Thread(target=work, args=(guard,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    samples = sum(
        number
        for counter in server.reports.counters.values()
        for number in counter["duration_ms_hist"].values()
    )
    assert server.reports.totals()["handled"] == 4_000
    assert samples >= 4_000 // 64


def test_a_forked_child_counts_for_itself_and_shares_the_skip_list(
    server: FakeServer, tmp_path: Path
) -> None:
    server.skip_list.add(kind="bookmark", value="b-2")

    with guarding(server, journal=tmp_path) as guard:
        guard.handle(message("b-1"), Handler())
        child = os.fork()
        if child == 0:
            outcomes = [guard.handle(message(b), Handler()) for b in ("b-1", "b-2")]
            guard.close()
            os._exit(0 if outcomes == [HANDLED, SKIPPED] else 1)
        _, status = os.waitpid(child, 0)
        guard.handle(message("b-3"), Handler())

    assert os.waitstatus_to_exitcode(status) == 0
    assert server.reports.totals()["handled"] == 3
    assert len({reporter for reporter, _ in server.reports.counters}) == 2
