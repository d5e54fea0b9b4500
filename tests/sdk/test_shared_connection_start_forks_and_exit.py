from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from poisonguard.contract import MatcherKind, Skip
from poisonguard.errors import Refused, StartTimeout
from poisonguard.server import report_sender_thread
from poisonguard.server.backoff import Backoff
from poisonguard.server.counts_by_minute import CounterKey
from poisonguard.server.report_sending import Reporter
from poisonguard.server.threads_shared_by_guards import (
    EXIT_TIMEOUT,
    Connection,
    _shared,
)
from poisonguard.skipping.skip_list import SkipList
from tests.sdk.failure_report_builder import confirmation, failure
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BILLING = CounterKey("orders", "billing", "billing-1")
# Seconds for which a program that ends may wait for a busy server.
PATIENCE = 60.0


@pytest.fixture
def connection(server: FakeServer) -> Iterator[Connection]:
    connection = Connection.shared([server.url], KEY)
    yield connection
    connection.close(1)


def joined(connection: Connection, **changes: Any) -> SkipList:
    wishes = {"topic": "orders", "consumer_group": "billing", "handler_version": None}
    return connection.skip_list(**{**wishes, **changes})


def locks_of(reporter: Reporter) -> list[threading.Lock]:
    owners: list[Any] = [
        *(reporter._sender_thread, reporter._failures, reporter._confirmations),
        *(reporter._counters, reporter._applied, reporter._heartbeats),
    ]
    return [owner._lock for owner in owners]


def own_threads(*, beside: set[threading.Thread]) -> list[str]:
    names = [thread.name for thread in {*threading.enumerate()} - beside]
    return sorted(name for name in names if name.startswith("poisonguard"))


def test_guards_of_one_server_and_key_share_a_connection(
    server: FakeServer, connection: Connection
) -> None:
    same = Connection.shared([server.url], KEY)
    other_key = Connection.shared([server.url], lambda: KEY)

    assert same is connection
    assert other_key is not connection
    same.close(1)
    other_key.close(1)


def test_the_last_user_closes_the_connection_and_its_threads(
    server: FakeServer,
) -> None:
    of_earlier_tests = {*threading.enumerate()}
    first, second = (Connection.shared([server.url], KEY) for _ in range(2))
    joined(first)
    first.start(60)
    first.reporter.count(BILLING, handled=1)
    running = own_threads(beside=of_earlier_tests)

    first.close(60)
    between = own_threads(beside=of_earlier_tests), server.reports.totals()["handled"]
    second.close(60)

    assert running == ["poisonguard-reporter", "poisonguard-skips", "poisonguard-tick"]
    assert between == (running, 1)
    assert own_threads(beside=of_earlier_tests) == []
    third = Connection.shared([server.url], KEY)
    assert third is not first
    third.close(1)


def test_a_closed_connection_leaves_no_stream_open(server: FakeServer) -> None:
    connection = Connection.shared([server.url], KEY)
    joined(connection)
    connection.start(60)
    server.until(lambda: server.stream.readers == 1)

    connection.close(60)

    server.until(lambda: server.stream.readers == 0)


def test_a_start_without_a_server_says_so_in_time(
    server: FakeServer, connection: Connection
) -> None:
    server.stop()
    mirror = joined(connection)

    def why_no_start() -> str:
        with pytest.raises(StartTimeout) as why:
            connection.start(0.5)
        return str(why.value)

    wait_until(lambda: server.url in why_no_start())

    assert mirror.age is None
    server.start()
    connection.start(60)
    assert mirror.age is not None


def test_a_start_with_a_wrong_key_is_refused_without_waiting(
    server: FakeServer,
) -> None:
    connection = Connection.shared([server.url], "pw_wrong")
    joined(connection)

    with pytest.raises(Refused, match="API key"):
        connection.start(600)

    connection.close(1)


def test_one_topic_that_a_key_may_not_read_refuses_the_start(
    server: FakeServer, connection: Connection
) -> None:
    server.faults.answer(403, path="/skips")
    joined(connection)

    with pytest.raises(Refused, match="scope"):
        connection.start(600)

    server.faults.recover()


def test_on_tick_is_called_about_once_a_second(
    server: FakeServer, connection: Connection
) -> None:
    calls = list[float]()
    connection.on_tick.append(_fail)
    connection.on_tick.append(lambda: calls.append(time.monotonic()))
    joined(connection)
    connection.start(60)

    server.until(lambda: len(calls) >= 3)

    assert calls[2] - calls[0] >= 1


def _fail() -> None:
    raise RuntimeError("so the test wants")


def test_warnings_mention_the_clock_the_list_and_the_reports(
    server: FakeServer, connection: Connection
) -> None:
    server.date_shift = 3_600
    joined(connection)
    connection.start(60)
    server.stop()
    connection.reporter.count(BILLING, handled=1)
    assert not connection.reporter.flush(0.3)

    server.until(lambda: len(connection.warnings) == 3)

    warnings = connection.warnings
    assert [
        word for word in ("skips: ", "The clock", "server: ") if word in str(warnings)
    ]
    server.start()


def test_reports_go_out_as_soon_as_the_stream_is_back(
    server: FakeServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = Backoff(floor=600, first=600, cap=600)
    monkeypatch.setattr(report_sender_thread, "Backoff", lambda **_: never)
    joined(connection)
    connection.start(60)
    server.stop()
    connection.reporter.confirm(confirmation("redrive.1"))
    server.until(
        lambda: any(warning.startswith("server") for warning in connection.warnings)
    )

    server.start()

    server.until(lambda: server.reports.confirmations)


# Processes


def test_a_forked_child_has_a_connection_of_its_own(
    server: FakeServer, connection: Connection
) -> None:
    server.skip_list.add(kind="bookmark", value="before")
    mirror = joined(connection)
    connection.start(60)
    connection.reporter.count(BILLING, handled=1)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_child, args=[connection, mirror, queue])
    child.start()
    at_once = queue.get()
    server.until(lambda: server.stream.readers == 2)

    server.skip_list.add(kind="bookmark", value="later")
    server.until(lambda: "later" in mirror.bookmarks)
    child.join(60)
    connection.reporter.flush(60)

    assert child.exitcode == 0
    assert at_once == ["before"]
    reporters = {reporter for reporter, _ in server.reports.counters}
    assert (len(reporters), server.reports.totals()["handled"]) == (2, 101)
    assert len(server.reports.failures) == 1
    assert connection.client.get("/skips", [("topic", "orders")])["revision"] == 2


def _child(connection: Connection, mirror: SkipList, queue: Any) -> None:
    queue.put(list(mirror.bookmarks))
    wait_until(lambda: "later" in mirror.bookmarks)
    connection.reporter.count(BILLING, handled=100)
    connection.reporter.poison(
        failure(),
        when_away="hold",
        keep_alive=None,
        stop=threading.Event(),
        hold_for=20,
    )
    connection.close(60)
    os._exit(0 if "later" in mirror.bookmarks else 1)


def test_a_child_waits_for_no_lock_of_a_thread_it_does_not_have(
    server: FakeServer, connection: Connection
) -> None:
    mirror = joined(connection)
    connection.start(60)
    locks: list[AbstractContextManager[object]] = [
        mirror._writing,
        connection._skip_stream._changed,
        connection.client._lock,
        *locks_of(connection.reporter),
        _shared.lock,
    ]
    is_holding, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as all_of_them:
            for lock in locks:
                all_of_them.enter_context(lock)
            is_holding.set()
            let_go.wait()

    threading.Thread(target=hold).start()
    is_holding.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # it must not hang for ever
        mirror.add_own(Skip(topic="orders", kind=MatcherKind.BOOKMARK, value="1"))
        os._exit(_count_and_close(connection))
    let_go.set()
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    server.until(lambda: server.reports.totals()["handled"] == 1)


def _count_and_close(connection: Connection) -> int:
    connection.reporter.count(BILLING, handled=1)
    connection.close(60)
    return 0


def test_forks_while_every_lock_is_busy_do_not_hang(
    server: FakeServer, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    # The lock of a stream that is logged to is Python's, and no fork frees it.
    caplog.set_level(logging.CRITICAL, logger="poisonguard")
    mirror, stop = joined(connection), threading.Event()
    connection.start(60)

    def work() -> None:
        while not stop.is_set():
            connection.reporter.count(BILLING, handled=1)
            connection.reporter.confirm(confirmation("redrive.1"))
            mirror.applied(mirror.bookmarks["1"])
            time.sleep(0.0001)

    server.skip_list.add(kind="bookmark", value="1")
    server.until(lambda: "1" in mirror.bookmarks)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    statuses = [_fork_and_close(connection) for _ in range(10)]
    stop.set()
    for thread in threads:
        thread.join()

    assert statuses == [0] * 10


def _fork_and_close(connection: Connection) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # it must not hang for ever
        os._exit(_count_and_close(connection))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _program(*arguments: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.sdk.unclosed_connection_consumer",
            *map(str, arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_program_that_ends_without_closing_sends_its_counts(
    server: FakeServer,
) -> None:
    process = _program(server.url, PATIENCE)

    process.communicate()

    assert process.returncode == 0
    assert server.reports.totals()["handled"] == 3
    assert set(server.reports.confirmations) == {"redrive.1"}


@pytest.mark.parametrize("fault", ["stop", "faults.freeze"])
def test_a_program_ends_though_the_server_is_away_and_leaves_the_rest_behind(
    fault: str, server: FakeServer, tmp_path: Path
) -> None:
    process = _program(server.url, EXIT_TIMEOUT, tmp_path)
    attrgetter(fault)(server)()

    process.communicate(timeout=60)
    assert process.returncode == 0
    server.faults.thaw()
    if fault == "stop":
        server.start()
    _program(server.url, PATIENCE, tmp_path).communicate()

    server.until(lambda: server.reports.totals()["handled"] == 6)
    assert list(tmp_path.glob("*.spool")) == []
