"""SIGTERM reaches the guards, whatever other handlers are set for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from poisonguard import Guard
from poisonguard.processes.sigterm_handler import MOST_TIMES, Sigterm
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.sdk.guard_and_handler_builders import Handler, guarding, message


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Leave the handlers of the tests' process as they were."""
    before = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGURG)
    }
    # A guard of another test may still listen in this process.
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def heard() -> list[str]:
    return []


def test_listeners_are_called_before_the_former_handler(
    heard: list[str],
) -> None:
    signal.signal(signal.SIGTERM, lambda *_: heard.append("application"))
    sigterm = Sigterm()
    for name in "ab":
        sigterm.add_listener(lambda name=name: heard.append(name))  # type: ignore[misc]

    signal.raise_signal(signal.SIGTERM)

    assert heard == ["a", "b", "application"]


def test_a_later_handler_that_calls_ours_is_called_once(heard: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: heard.append("first"))
    sigterm = Sigterm()
    sigterm.add_listener(lambda: heard.append("a"))
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)

    def late(number: int, frame: FrameType | None) -> None:
        heard.append("late")
        ours(number, frame)

    signal.signal(signal.SIGTERM, late)

    sigterm.ensure_handler()
    signal.raise_signal(signal.SIGTERM)

    assert heard == ["a", "late", "a", "first"]


def test_a_check_on_another_thread_lets_the_main_thread_set_the_handler(
    heard: list[str],
) -> None:
    sigterm = Sigterm()
    sigterm.add_listener(lambda: heard.append("a"))
    signal.signal(signal.SIGTERM, lambda *_: heard.append("late"))

    thread = threading.Thread(target=sigterm.ensure_handler)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGTERM)

    assert heard == ["a", "late"]


def test_the_last_listener_that_leaves_restores_the_handlers() -> None:
    def application(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, application)
    sigterm, tell = Sigterm(), Handler()
    sigterm.add_listener(tell)  # type: ignore[arg-type] # it is never called

    sigterm.remove_listener(tell)  # type: ignore[arg-type]

    assert signal.getsignal(signal.SIGTERM) is application
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_a_handler_that_is_set_again_and_again_is_left_alone_at_last() -> None:
    sigterm = Sigterm()
    sigterm.add_listener(lambda: None)

    for _ in range(2 * MOST_TIMES):
        signal.signal(signal.SIGTERM, print)
        sigterm.ensure_handler()

    assert signal.getsignal(signal.SIGTERM) is print
    assert "guard.stopping()" in sigterm.warning


def test_an_ignored_sigterm_stays_ignored_with_a_warning(server: FakeServer) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    with guarding(server) as guard:
        server.until(lambda: "ignores SIGTERM" in str(guard.health()["warnings"]))
        handler = signal.getsignal(signal.SIGTERM)

    assert handler is signal.SIG_IGN


def test_a_guard_that_cannot_hear_it_warns_until_it_does(server: FakeServer) -> None:
    guard = Guard(
        topic="orders",
        consumer_group="billing",
        url=server.url,
        api_key=KEY,
        journal=None,
    )
    start = threading.Thread(target=guard.start)
    start.start()
    start.join()
    server.until(lambda: "guard.stopping()" in str(guard.health()["warnings"]))

    guard.handle(message(), Handler())  # on the main thread
    warnings = guard.health()["warnings"]
    guard.close()

    assert warnings == []


def test_a_guard_that_is_told_of_the_stop_cuts_its_waits_short(
    server: FakeServer,
) -> None:
    with guarding(server) as guard:
        for _ in "ab":
            guard.stopping()
        state = guard.health()["state"]

    assert state == "stopping"


def test_a_guard_may_be_told_of_the_stop_before_it_starts(server: FakeServer) -> None:
    guard = Guard(
        topic="orders",
        consumer_group="billing",
        url=server.url,
        api_key=KEY,
        journal=None,
    )

    guard.stopping()
    with guard:
        state = guard.health()["state"]

    assert state == "stopping"


def test_sigterm_is_heard_however_many_have_come_and_gone(heard: list[str]) -> None:
    sigterm = Sigterm()

    def tell() -> None:
        heard.append("a")

    for _ in range(MOST_TIMES + 1):
        sigterm.add_listener(tell)
        sigterm.remove_listener(tell)
    signal.signal(signal.SIGTERM, lambda *_: heard.append("application"))
    sigterm.add_listener(tell)

    signal.raise_signal(signal.SIGTERM)

    assert heard == ["a", "application"]
