"""Who is sick, the message or the consumer: the breaker, and suspected poisons."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

import pytest

from poisonguard import BreakerPolicy, Outcome
from poisonguard.contract import FailureReport
from poisonguard.handling.reports_of_maybe_sick_process import (
    BYTES_LIMIT,
    SuspectedReports,
)
from poisonguard.readers.plain import PlainReader
from tests.sdk.failure_report_builder import failure
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.sdk.guard_and_handler_builders import (
    Failing,
    Handler,
    Message,
    guarding,
    message,
    redriven,
)

HANDLED, POISONED = Outcome.HANDLED, Outcome.POISONED
QUICK = BreakerPolicy(in_a_row=3, pause=0.3)


def suspected(server: FakeServer) -> dict[str, bool]:
    """Tell for each bookmark whether its newest report was suspected."""
    reports = [
        report
        for method, path, body in list(server.requests)
        if method == "POST" and path.endswith("/failures")
        for report in body["failures"]
    ]
    return {report["bookmark"]: bool(report.get("suspected")) for report in reports}


def test_one_sick_consumer_of_ten_stops_and_poisons_nothing_for_the_others(
    server: FakeServer,
) -> None:
    server.replays = True
    replaying = PlainReader(replays=True)
    bookmarks = [f"b-{n}" for n in range(60)]

    with ExitStack() as stack:
        well, sick = (
            stack.enter_context(
                guarding(server, client_name=name, reader=replaying, hold_for=0.1)
            )
            for name in ("well", "sick")
        )
        handled = [well.handle(message(b), Handler()) for b in bookmarks[:5]]
        failed = [sick.handle(message(b), Failing(OSError())) for b in bookmarks]
        health = sick.health()
        handled += [well.handle(message(b), Handler()) for b in bookmarks[5:]]

    assert failed == [POISONED] * 49 + [Outcome.RELEASE] * 11
    assert handled == [HANDLED] * 60
    assert all(suspected(server).values())
    assert server.skip_list.skips == {}
    assert health["state"] == "paused"
    assert server.reports.guards["sick"]["detail"] == "50 messages failed in a row"


def test_a_paused_guard_keeps_messages_alive_and_goes_on_when_one_is_handled(
    server: FakeServer,
) -> None:
    sick, well = Failing(OSError()), Handler()
    kept_alive: list[Message] = []
    options: dict[str, Any] = {
        "keep_alive": kept_alive.append,
        "hold_for": 5,
        "lease": 0.3,
    }
    with guarding(server, breaker=QUICK, **options) as guard:
        guard.handle(message("b-0"), well)
        failed = [guard.handle(message(f"b-{n}"), sick) for n in range(3)]
        kept_alive.clear()
        tried = guard.handle(message("b-3"), sick)
        paused = guard.health()["state"]
        handled = guard.handle(message("b-2"), well)
        running = guard.health()["state"]
        attempts = guard.health()["suspects"]

    assert failed == [POISONED, POISONED, Outcome.RELEASE]
    assert (tried, paused) == (Outcome.RELEASE, "paused")
    assert (handled, running, attempts) == (HANDLED, "running", 0)
    assert sick.calls == ["b-0", "b-0", "b-1", "b-1", "b-2", "b-2", "b-3"]
    assert kept_alive


def test_a_guard_without_a_breaker_never_pauses(server: FakeServer) -> None:
    with guarding(server, breaker=None) as guard:
        outcomes = [
            guard.handle(message(f"b-{n}"), Failing(OSError())) for n in range(60)
        ]

    assert outcomes == [POISONED] * 60


def test_a_requeued_message_that_fails_again_does_not_pause_the_guard(
    server: FakeServer,
) -> None:
    with guarding(server, breaker=QUICK, hold_for=0.1) as guard:
        outcomes = [
            guard.handle(redriven(f"b-{n}", message_id=f"m-{n}"), Failing(OSError()))
            for n in range(20)
        ]
        health = guard.health()

    assert outcomes == [POISONED] * 20
    assert not any(suspected(server).values())
    assert health["state"] == "running"


def test_failures_before_the_first_success_stay_suspected_until_it(
    server: FakeServer,
) -> None:
    handler = Failing(ValueError(), "b-1")

    with guarding(server) as guard:
        outcome = guard.handle(message("b-1"), handler)
        before, health = suspected(server), guard.health()
        guard.handle(message("b-2"), handler)
        server.until(lambda: not suspected(server)["b-1"])
        server.until(lambda: not guard.health()["suspected"])

    assert outcome is POISONED
    assert (before, health["suspected"]) == ({"b-1": True}, 1)
    assert list(server.reports.arrivals.values()) == [2]  # one report, told twice


def test_the_eleventh_poison_in_a_row_is_suspected(server: FakeServer) -> None:
    with guarding(server) as guard:
        guard.handle(message("b-0"), Handler())
        for n in range(1, 12):
            guard.handle(message(f"b-{n}"), Failing(ValueError()))

    assert [b for b, is_suspected in suspected(server).items() if is_suspected] == [
        "b-11"
    ]


def test_a_suspected_poison_that_cannot_be_reported_is_reported_later(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), guarding(server) as guard:
        guard.handle(message("b-1"), Failing(ValueError()))
        server.stop()
        guard.handle(message("b-2"), Handler())
        server.until(lambda: "'b-1' stays suspected for now" in caplog.text)
        still = guard.health()["suspected"]
        server.start()
        server.until(lambda: not suspected(server)["b-1"])

    assert still == 1


def test_the_bodies_of_suspected_poisons_are_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def big(bookmark: str) -> FailureReport:
        return failure(bookmark=bookmark, body=bytes(BYTES_LIMIT // 2))

    suspected_reports = SuspectedReports()

    for n in range(3):
        suspected_reports.add(big(f"b-{n}"), handled=0)

    assert len(suspected_reports) == 2
    assert "'b-2' stays suspected" in caplog.text


def test_the_server_gets_heartbeats_of_a_guard(server: FakeServer) -> None:
    with guarding(server, version="v7", journal=None) as guard:
        guard.handle(message(), Handler())
        server.until(lambda: server.reports.guards)
        running = dict(server.reports.guards["billing-1"])
    server.until(lambda: server.reports.guards["billing-1"]["state"] == "stopping")

    assert running["skips_age_s"] < 60
    assert running | {"skips_age_s": 0, "at": "", "reporter": "", "host": ""} == {
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "version": "0.2.0",
        "handler_version": "v7",
        "state": "running",
        "detail": "",
        "spooled": 0,
        "suspected": 0,
        "journal": False,
        "failing_since": None,
        "skips_age_s": 0,
        "at": "",
        "reporter": "",
        "host": "",
    }
