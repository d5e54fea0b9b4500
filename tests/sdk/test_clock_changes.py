"""Clocks that are set while a guard runs: of this machine, and of the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from poisonguard import BreakerPolicy, Outcome, RetryPolicy
from poisonguard.readers.plain import PlainReader
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import Spool
from poisonguard.server.threads_shared_by_guards import Connection
from tests.sdk.failure_report_builder import failure
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.sdk.guard_and_handler_builders import Failing, Handler, guarding, message

HANDLED, POISONED, SKIPPED = Outcome.HANDLED, Outcome.POISONED, Outcome.SKIPPED
HOUR, DAY = 3_600.0, 86_400.0
JUMPS = [-40 * DAY, -HOUR, HOUR, 40 * DAY]
Set = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> Set:
    """Let a test set the clock of this machine, and leave the server's as it is."""
    real = time.time
    # In one step: an answer between two steps would have a wrong time.
    server.date_of = lambda: formatdate(real() + server.date_shift, usegmt=True)

    def jump(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return jump


@pytest.fixture
def connection(server: FakeServer) -> Iterator[Connection]:
    connection = Connection([server.url], KEY)
    yield connection
    connection.close(1)


def ticks(connection: Connection, number: int = 3) -> threading.Event:
    """Tell when the connection has looked so often at what is over."""
    remaining, done = [number], threading.Event()

    def tick() -> None:
        remaining[0] -= 1
        if remaining[0] <= 0:
            done.set()

    connection.on_tick.append(tick)
    return done


@pytest.mark.parametrize("seconds", JUMPS)
def test_no_skip_ends_and_none_is_missed_because_the_clock_was_set(
    seconds: float, server: FakeServer, connection: Connection, set_clock: Set
) -> None:
    a_while = datetime.now(UTC) + timedelta(minutes=30)
    mirror = connection.skip_list(
        topic="orders", consumer_group="billing", handler_version=None
    )
    server.skip_list.add(
        kind="bookmark", value="before", expires_at=a_while.isoformat()
    )
    connection.start(60)

    set_clock(seconds)
    server.skip_list.add(kind="bookmark", value="after", expires_at=a_while.isoformat())
    server.until(lambda: "after" in mirror.bookmarks or mirror.changes["removed"])
    assert ticks(connection).wait(60)

    assert {*mirror.bookmarks} == {"before", "after"}


def test_an_expired_skip_is_removed_though_the_clock_was_set_back(
    server: FakeServer, connection: Connection, set_clock: Set
) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=2)
    mirror = connection.skip_list(
        topic="orders", consumer_group="billing", handler_version=None
    )
    server.skip_list.add(kind="bookmark", value="1", expires_at=soon.isoformat())
    connection.start(60)

    set_clock(-DAY)

    server.until(lambda: not mirror.bookmarks)


@pytest.mark.parametrize(
    "date",
    [
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Mon, 01 Jan 99999999999999 00:00:00 GMT",
        "Wed, 31 Dec 1969 23:59:59 GMT",
        "yesterday",
        "",
    ],
)
def test_an_impossible_server_date_is_ignored(date: str, server: FakeServer) -> None:
    client = Client([server.url], KEY)
    server.faults.answer(503, times=1, headers={"Date": date, "Retry-After": date})
    server.date_of = lambda: date

    before = client.now()
    with pytest.raises(Exception, match="503"):
        client.post("/positions/open", {"client_name": "billing-1"})
    client.get("/skips", [("topic", "orders")])

    assert client._clock.skew is None
    assert timedelta(0) <= client.now() - before < timedelta(minutes=5)


# Ages


@pytest.mark.parametrize("whose", ["ours", "the server's"])
@pytest.mark.parametrize("seconds", JUMPS)
def test_no_message_expires_because_one_clock_was_set(
    seconds: float, whose: str, server: FakeServer, set_clock: Set
) -> None:
    reader = PlainReader(enqueued_at="enqueued_at")
    today = datetime.now(UTC)
    policy = RetryPolicy(max_attempts=3, base=0.001, cap=0.001)
    handler = Handler(None, ValueError(), None, None)

    with guarding(server, reader=reader, policy=policy) as guard:
        guard.handle(message("b-0", enqueued_at=today), handler)
        if whose == "ours":
            set_clock(seconds)
        else:
            server.date_shift = seconds
            # It is told with each answer.
            guard.handle(message("told"), Failing(ValueError()))
        outcomes = [
            guard.handle(message(f"b-{n}", enqueued_at=today), handler)
            for n in range(1, 3)
        ]

    assert outcomes == [HANDLED, HANDLED]
    assert handler.calls == ["b-0", "b-1", "b-1", "b-2"]
    reported = [report["bookmark"] for report in server.reports.failures.values()]
    assert reported == ([] if whose == "ours" else ["told"])


def test_a_message_that_failed_before_the_clock_was_set_right_does_not_expire(
    server: FakeServer, set_clock: Set, tmp_path: Path
) -> None:
    """A machine that starts in 1970 learns the time when it is up."""
    handler = Handler(ValueError(), ValueError(), None)

    def set_right(_: object, __: object) -> None:
        set_clock(0.0)

    policy = RetryPolicy(
        max_attempts=3, base=0.001, cap=0.001, on_first_failure=set_right
    )
    set_clock(-50 * 365 * DAY)
    with guarding(server, policy=policy, journal=tmp_path) as guard:
        outcome = guard.handle(message("b-1"), handler)

    assert (outcome, handler.calls) == (HANDLED, ["b-1"] * 3)
    assert server.reports.failures == {}


def test_a_message_expires_where_both_clocks_say_so(
    server: FakeServer, set_clock: Set
) -> None:
    reader = PlainReader(enqueued_at="enqueued_at")
    today = datetime.now(UTC)
    set_clock(8 * DAY)
    server.date_shift = 8 * DAY

    with guarding(server, reader=reader) as guard:
        outcome = guard.handle(message("b-1", enqueued_at=today), Handler())

    (report,) = server.reports.failures.values()
    assert (outcome, report["cause"]) == (POISONED, "expired")


# Retries, skips of our own, and pauses


@pytest.mark.parametrize("seconds", JUMPS)
def test_retries_own_skips_and_crashes_hold_while_the_clock_is_set(
    seconds: float, server: FakeServer, set_clock: Set, tmp_path: Path
) -> None:
    policy = RetryPolicy(max_attempts=2, base=3.0, cap=3.0)
    kept_alive = list[object]()

    def set_while_it_waits(one_message: object) -> None:
        if not kept_alive:
            set_clock(seconds)
        kept_alive.append(one_message)

    options: dict[str, Any] = {
        "policy": policy,
        "lease": 0.3,
        "keep_alive": set_while_it_waits,
        "journal": tmp_path,
        "reader": PlainReader(replays=True),
    }
    handler = Failing(ValueError(), "bad")

    with guarding(server, **options) as guard:
        began = time.monotonic()
        outcomes = [guard.handle(message(b), handler) for b in ("good", "bad")]
        took = time.monotonic() - began
        again = guard.handle(message("bad"), handler)

    assert [*outcomes, again] == [HANDLED, POISONED, SKIPPED]
    assert handler.calls == ["good", "bad", "bad"]
    assert 3.0 <= took < 60
    assert len(kept_alive) >= 3  # its lease has run out twice
    (report,) = server.reports.failures.values()
    assert (report["failures"], report["cause"]) == (2, "exhausted")


@pytest.mark.parametrize("seconds", JUMPS)
def test_a_consumer_that_pauses_names_all_that_counts_against_it(
    seconds: float, server: FakeServer, set_clock: Set
) -> None:
    breaker = BreakerPolicy(in_a_row=3, pause=60.0)
    failing = Failing(ConnectionError())
    with guarding(server, breaker=breaker, hold_for=0.05) as guard:
        guard.handle(message("b-0"), Handler())
        outcomes = [guard.handle(message(f"b-{n}"), failing) for n in (1, 2)]
        set_clock(seconds)
        outcomes.append(guard.handle(message("b-3"), failing))
        server.until(lambda: server.reports.guards["billing-1"]["state"] == "paused")
        since = server.reports.guards["billing-1"]["failing_since"]

    failed = [report["failed_at"] for report in server.reports.failures.values()]
    assert outcomes == [POISONED, POISONED, Outcome.RELEASE]
    assert datetime.fromisoformat(since) <= min(map(datetime.fromisoformat, failed))


# What is kept on disk


def test_no_report_is_lost_where_the_clock_is_set_between_segments(
    server: FakeServer, set_clock: Set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poisonguard.server.spool.SEGMENT_LIMIT", 1)  # one report each
    monkeypatch.setattr("poisonguard.server.spooled_report_sending.ADOPT_EVERY", 0.0)
    hours, real = iter((0, 40, -40, 1, -1, 3)), time.time_ns
    monkeypatch.setattr(
        time, "time_ns", lambda: real() + next(hours) * 3_600 * 1_000_000_000
    )
    before, reports = Spool(tmp_path), [failure(bookmark=f"b-{n}") for n in range(6)]
    for report in reports[:3]:
        before.append("failures", report.to_wire(), durable=True)
    before.close()

    spool = Spool(tmp_path)
    for report in reports[3:]:
        spool.append("failures", report.to_wire(), durable=True)
    reporter = Reporter(Client([server.url], KEY), spool=spool)
    reporter.start()
    server.until(lambda: len(server.reports.failures) == 6)
    server.until(lambda: reporter.spooled == 0)
    reporter.close(60)

    assert {*server.reports.arrivals.values()} == {1}
    assert list(tmp_path.glob("*.spool")) == []
