"""Messages of the real AMPS client in other threads than the client's."""

from __future__ import annotations

import asyncio
import copy
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import AMPS
import pytest

from poisonguard import Guard, Outcome
from poisonguard.amps import MisterYuck
from poisonguard.errors import Misconfigured
from poisonguard.readers.amps import AmpsReader
from tests.amps.conftest import Connect
from tests.amps.fake_amps_server import Amps
from tests.amps.test_mister_yuck_client_wrapper import No13, a_message, bodies, records
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.sdk.guard_and_handler_builders import guarding
from tests.waiting import wait_until

EPOCH = AMPS.Client.Bookmarks.EPOCH
EIGHT = bodies(*range(1, 9))


class Bad:
    """A handler that can process no message, and keeps what it was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, message: Any) -> None:
        self.bodies.append(message.get_data_raw())
        raise ValueError("bad")


@pytest.fixture
def guard(poisonweb: FakeServer) -> Iterator[Guard]:
    with guarding(poisonweb, reader=AmpsReader(), breaker=None) as guard:
        yield guard


def handed_to_a_pool(amps: Amps, client: Any, hand: Callable[[Any], Any]) -> list[Any]:
    """Call a function in a pool for each of eight messages; return the results."""
    futures: list[Future[Any]] = []
    amps.publish("orders", *EIGHT)
    with ThreadPoolExecutor(4) as pool:
        client.bookmark_subscribe(
            lambda message: futures.append(pool.submit(*hand(message))),
            *("orders", EPOCH, None, "eu"),
        )
        wait_until(lambda: len(futures) == len(EIGHT))
    return futures


def test_eight_copies_make_eight_reports_with_eight_bodies(
    amps: Amps, poisonweb: FakeServer, connect: Connect, guard: Guard
) -> None:
    handler = Bad()
    futures = handed_to_a_pool(
        amps, connect(), lambda m: (guard.handle, copy.deepcopy(m), handler)
    )

    assert [future.result() for future in futures] == [Outcome.POISONED] * 8
    reports = poisonweb.reports.failures.values()
    assert len({report["bookmark"] for report in reports}) == 8
    assert {report["body"] for report in reports} == {*map(base64_of, EIGHT)}


def test_the_client_s_own_object_is_refused_and_charges_no_message(
    amps: Amps,
    poisonweb: FakeServer,
    connect: Connect,
    guard: Guard,
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Bad()
    futures = handed_to_a_pool(amps, connect(), lambda m: (guard.handle, m, handler))

    assert [future.result() for future in futures] == [Outcome.RELEASE] * 8
    assert (handler.bodies, poisonweb.reports.failures) == ([], {})
    assert caplog.text.count("copy.deepcopy(message)") == 8


def test_the_client_s_own_object_is_refused_in_a_task_of_another_thread(
    amps: Amps, poisonweb: FakeServer, connect: Connect, guard: Guard
) -> None:
    async def handler(message: Any) -> None:
        raise ValueError

    def run(message: Any) -> Outcome:
        return asyncio.run(guard.handle_async(message, handler))

    futures = handed_to_a_pool(amps, connect(), lambda m: (run, m))

    assert [future.result() for future in futures] == [Outcome.RELEASE] * 8
    assert poisonweb.reports.failures == {}


def test_the_client_s_own_object_is_handled_on_its_thread(
    amps: Amps, poisonweb: FakeServer, connect: Connect, guard: Guard
) -> None:
    handler, outcomes = Bad(), list[Outcome]()
    amps.publish("orders", *EIGHT)

    connect().bookmark_subscribe(
        lambda m: outcomes.append(guard.handle(m, handler)),
        *("orders", EPOCH, None, "eu"),
    )

    wait_until(lambda: len(outcomes) == 8)
    assert outcomes == [Outcome.POISONED] * 8
    assert len(poisonweb.reports.failures) == 8


def test_messages_of_a_stream_are_of_their_own(
    amps: Amps, poisonweb: FakeServer, connect: Connect, guard: Guard
) -> None:
    amps.publish("orders", *EIGHT)
    stream = connect().bookmark_subscribe("orders", EPOCH)

    messages = [next(stream) for _ in EIGHT]
    outcomes = [guard.handle(message, Bad()) for message in messages]

    assert outcomes == [Outcome.POISONED] * 8
    bodies_told = {report["body"] for report in poisonweb.reports.failures.values()}
    assert bodies_told == {*map(base64_of, EIGHT)}


def test_the_wrapper_refuses_the_client_s_own_object_on_another_thread(
    amps: Amps, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client, handler = connect(), No13()
    with MisterYuck(client, handler) as protector:
        futures = handed_to_a_pool(amps, client, lambda m: (protector, m))
        copied = a_message("5|1|", '{"id":1}')
        protector(copied)

    assert [type(future.exception()) for future in futures] == [Misconfigured] * 8
    assert (handler.tried, records(amps)) == ([1], {})
    assert caplog.text.count("is not handled") == 8


@pytest.mark.parametrize("message", [{"bookmark": "b-1"}, b"bytes", None])
def test_what_is_no_message_of_the_client_is_named_with_the_remedy(
    message: object,
) -> None:
    with pytest.raises(TypeError, match="the reader of your client"):
        AmpsReader().bookmark(message)


def base64_of(body: bytes) -> str:
    return b64encode(body).decode()
