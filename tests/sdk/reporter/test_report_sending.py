"""A report is durable when `poison` returns; what the server answers decides."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from poisonguard.errors import Away, Refused
from poisonguard.server import oversize_body_omission
from poisonguard.server.counts_by_minute import CounterKey
from poisonguard.server.failure_report_queue import Receipt
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import Spool
from tests.sdk.failure_report_builder import confirmation, failure, poison
from tests.sdk.fake_poisonweb_server import FakeServer


def test_a_report_is_durable_when_poison_returns(
    server: FakeServer, reporter: Reporter
) -> None:
    report = failure(body=b"\x00\xff", headers=((b"k", b"v"),))

    receipt = poison(reporter, report=report)

    assert receipt == Receipt(status="created", poison=1, spooled=False)
    assert server.reports.failures == {str(report.report_id): report.to_wire()}


def test_a_rejected_report_is_refused_with_the_reason(
    server: FakeServer, reporter: Reporter
) -> None:
    server.reports.rejects = lambda _: "oversize: the body has 9 bytes"

    with pytest.raises(Refused, match="oversize"):
        poison(reporter)


@pytest.mark.parametrize("status", ["banana", None, "", 0, [], {"created": 1}, True])
def test_an_unknown_status_does_not_accept_a_report(
    status: object, server: FakeServer, reporter: Reporter
) -> None:
    server.rewords = lambda answer: {**answer, "status": status}

    with pytest.raises(Refused, match="does not know"):
        poison(reporter)


@pytest.mark.parametrize("status", ["created", "updated", "duplicate"])
def test_each_status_of_the_protocol_accepts_a_report(
    status: str, server: FakeServer, reporter: Reporter
) -> None:
    server.rewords = lambda answer: {**answer, "status": status}

    assert poison(reporter).status == status


def test_a_spooled_report_that_got_an_unknown_status_is_kept_aside(
    server: FakeServer, spooling: Reporter
) -> None:
    server.rewords = lambda answer: {**answer, "status": "banana"}
    server.stop()
    poison(spooling, when_away="spool")
    server.start()

    server.until(lambda: spooling.spooled == 0)

    assert any("1 reports were rejected" in warning for warning in spooling.warnings)


def uploads(server: FakeServer) -> list[dict[str, Any]]:
    return [
        report
        for _, path, body in server.requests
        if path.endswith("/failures")
        for report in body["failures"]
    ]


def test_a_body_too_large_for_a_request_is_uploaded_once_then_left_out(
    server: FakeServer, reporter: Reporter
) -> None:
    large = failure(body=b"x" * 100_000)
    larger = failure(body=b"y" * 100_001, bookmark="larger")
    server.faults.answer(413, times=1, path="/failures")

    for report in (large, large, larger):
        with pytest.raises(Refused, match=r"oversize: the body has 10000\d bytes"):
            poison(reporter, report=report)
    small = poison(reporter, report=failure(body=b"x" * 99_999))

    first, *others, last = uploads(server)
    assert first == large.to_wire()
    assert others[0] == large.without_body().to_wire()
    assert [("body" in one, one["oversize_body"]["size"]) for one in others] == [
        (False, 100_000),
        (False, 100_000),
        (False, 100_001),
    ]
    assert (small.status, len(last["body"]) > 99_999) == ("created", True)
    (warning,) = reporter.warnings
    assert warning.startswith("2 messages are too large for Poisonweb")
    assert "'larger' of orders (100001 bytes)" in warning


def test_a_body_above_the_servers_limit_is_uploaded_once(
    server: FakeServer, reporter: Reporter
) -> None:
    answer = {"status": "rejected", "pointer": "/body", "detail": "oversize: 9 bytes"}
    server.rewords = lambda _: answer
    report = failure(body=b"x" * 1_000)

    for _ in range(2):
        with pytest.raises(Refused, match="oversize"):
            poison(reporter, report=report)

    assert ["body" in upload for upload in uploads(server)] == [True, False]


def test_a_body_that_was_too_large_is_tried_again_later(
    server: FakeServer, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oversize_body_omission, "TRIED_AGAIN_AFTER", 0.0)
    server.faults.answer(413, times=1, path="/failures")
    report = failure()

    with pytest.raises(Refused):
        poison(reporter, report=report)
    receipt = poison(reporter, report=report)

    assert receipt.status == "created"
    assert reporter.warnings == []


def test_one_rejected_report_does_not_affect_others_of_its_batch(
    server: FakeServer, reporter: Reporter
) -> None:
    server.reports.rejects = lambda item: "no" if item["bookmark"] == "bad" else None
    outcomes: list[str] = []

    def tell(bookmark: str) -> None:
        try:
            outcomes.append(poison(reporter, report=failure(bookmark=bookmark)).status)
        except Refused:
            outcomes.append("refused")

    threads = [
        threading.Thread(target=tell, args=[b]) for b in ["1", "bad", "2", "3"] * 5
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert Counter(outcomes) == {"created": 3, "updated": 12, "refused": 5}


def test_holds_until_the_server_is_back_and_keeps_the_message_alive(
    server: FakeServer, reporter: Reporter
) -> None:
    server.stop()

    receipt, beats = poison_until_beats(reporter, 2, then=server.start)

    assert receipt.status == "created"
    assert_about_once_a_second(beats)


def poison_until_beats(
    reporter: Reporter, number: int, *, then: Callable[[], object]
) -> tuple[Receipt, list[float]]:
    """Report a poison; call `then` after so many beats; return when all of it was."""
    moments = [time.monotonic()]

    def beat() -> None:
        moments.append(time.monotonic())
        if len(moments) == 1 + number:
            then()

    receipt = poison(reporter, keep_alive=beat)
    return receipt, [*moments, time.monotonic()]


def assert_about_once_a_second(moments: list[float]) -> None:
    """Check the beats between begin and end, each of which a busy machine may delay."""
    begin, *beats, end = moments
    assert min(b - a for a, b in pairwise([begin, *beats])) < 2
    assert len(beats) <= end - begin


def test_holds_through_a_frozen_server_and_keeps_the_message_alive(
    server: FakeServer, impatient: Client
) -> None:
    reporter = Reporter(impatient)
    server.faults.freeze()

    receipt, beats = poison_until_beats(reporter, 2, then=server.faults.thaw)

    reporter.close(0.2)
    assert receipt.status in {"created", "duplicate"}
    assert_about_once_a_second(beats)
    assert len(server.reports.failures) == 1


def test_a_report_held_too_long_raises_away_after_one_try_at_least(
    server: FakeServer, reporter: Reporter
) -> None:
    server.stop()

    with pytest.raises(Away, match=server.url):
        poison(reporter, hold_for=0)

    server.start()
    assert poison(reporter, hold_for=0).status == "created"


def test_a_guard_that_stops_waits_no_longer(
    server: FakeServer, reporter: Reporter
) -> None:
    server.stop()
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()

    with pytest.raises(Away):
        poison(reporter, stop=stop, hold_for=600)

    assert time.monotonic() - began < 60


def test_a_keep_alive_that_fails_is_not_swallowed(
    server: FakeServer, reporter: Reporter
) -> None:
    server.stop()

    def is_away() -> None:
        raise RuntimeError("the broker is gone")

    with pytest.raises(RuntimeError, match="broker"):
        poison(reporter, keep_alive=is_away)


def test_a_report_whose_answer_was_lost_is_sent_again_under_its_id(
    server: FakeServer, reporter: Reporter
) -> None:
    server.faults.lose_answers(2)
    report = failure()

    receipt = poison(reporter, report=report)

    assert receipt.status == "duplicate"
    assert server.reports.arrivals[str(report.report_id)] == 3
    assert len(server.reports.failures) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_holds_until_the_key_is_mended_and_says_what_to_do(
    status: int,
    server: FakeServer,
    reporter: Reporter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.faults.answer(status, path="/failures")
    batches: list[list[str]] = []

    def mend() -> None:
        if reporter.warnings:
            batches.append(reporter.warnings)
            server.faults.recover()

    receipt = poison(reporter, keep_alive=mend)
    server.until(lambda: not reporter.trouble)

    assert receipt.status == "created"
    assert any(str(status) in line and "API key" in line for line in batches[0])
    assert caplog.text.count("failures cannot be delivered") == 1


def test_a_wrong_key_raises_away_for_each_report(server: FakeServer) -> None:
    reporter = Reporter(Client([server.url], "pw_wrong"))

    for _ in range(2):
        with pytest.raises(Away, match="API key"):
            poison(reporter, hold_for=0.1)

    reporter.close(0.1)


def test_spools_when_the_key_is_turned_away(
    server: FakeServer, spooling: Reporter
) -> None:
    server.faults.answer(403, path="/failures")

    receipt = poison(spooling, when_away="spool")
    server.until(lambda: "spool" in spooling.trouble)
    warnings = spooling.warnings
    server.faults.recover()
    server.until(lambda: server.reports.failures and not spooling.trouble)

    assert receipt == Receipt(status="spooled", poison=None, spooled=True)
    assert any("403" in line for line in warnings)


def test_other_client_errors_raise_refused_at_once(
    server: FakeServer, reporter: Reporter
) -> None:
    server.faults.answer(404, path="/failures")

    with pytest.raises(Refused, match="check the url"):
        poison(reporter)


def test_a_closed_reporter_is_away(reporter: Reporter) -> None:
    reporter.close(1)

    with pytest.raises(Away, match="closed"):
        poison(reporter)


def test_a_server_that_goes_away_for_seconds_under_load_loses_and_doubles_nothing(
    server: FakeServer, impatient: Client, tmp_path: Path
) -> None:
    spooling = Reporter(impatient, spool=Spool(tmp_path))
    stop, lock = threading.Event(), threading.Lock()
    ids: dict[str, set[str]] = {"failures": set(), "confirmations": set()}
    counted = count()

    def consume(client_name: str) -> None:
        key = CounterKey("orders", "billing", client_name)
        for number in count():
            if stop.is_set():
                return
            spooling.count(key, handled=1)
            next(counted)
            report, redrive = failure(), f"{client_name}.{number}"
            when_away = "spool" if number % 2 else "hold"
            poison(spooling, report=report, when_away=when_away, hold_for=60.0)
            spooling.confirm(confirmation(redrive))
            with lock:
                ids["failures"].add(str(report.report_id))
                ids["confirmations"].add(redrive)

    threads = [threading.Thread(target=consume, args=[f"c{n}"]) for n in range(4)]
    for thread in threads:
        thread.start()
    # Real seconds under load, with requests at every step of their way.
    for away in (server.stop, server.faults.freeze):
        threading.Event().wait(0.5)
        server.faults.lose_answers(2)
        away()
        threading.Event().wait(2)
        (server.start if away == server.stop else server.faults.thaw)()
    threading.Event().wait(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    spooling.close(120)

    assert set(server.reports.failures) == ids["failures"]
    assert set(server.reports.confirmations) == ids["confirmations"]
    assert server.reports.totals()["handled"] == next(counted)
