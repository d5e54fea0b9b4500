from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from poisonguard.contract import GuardHeartbeat, GuardState
from poisonguard.errors import Away, Full, Misconfigured, Refused
from poisonguard.server import counts_by_minute as counting
from poisonguard.server import oversize_body_omission, redrive_confirmation_queue
from poisonguard.server.counts_by_minute import CounterKey, Counters
from poisonguard.server.failure_report_queue import Receipt
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import Spool
from tests.sdk.failure_report_builder import confirmation, failure
from tests.sdk.fake_poisonweb_server import KEY, FakeServer

BILLING = CounterKey("orders", "billing", "billing-1")


@pytest.fixture
def client(server: FakeServer) -> Client:
    return Client([server.url], KEY, timeout=60)


@pytest.fixture
def impatient(server: FakeServer) -> Client:
    """Return a client that gives up soon, and sends again what may have arrived."""
    return Client([server.url], KEY, timeout=1)


@pytest.fixture
def reporter(client: Client) -> Iterator[Reporter]:
    reporter = Reporter(client)
    yield reporter
    reporter.close(0.2)


@pytest.fixture
def spooling(client: Client, tmp_path: Path) -> Iterator[Reporter]:
    reporter = Reporter(client, spool=Spool(tmp_path))
    yield reporter
    reporter.close(0.2)


def poison(reporter: Reporter, **changes: Any) -> Receipt:
    wishes: dict[str, Any] = {
        "report": failure(),
        "when_away": "hold",
        "keep_alive": None,
        "stop": threading.Event(),
        "hold_for": 20.0,
        **changes,
    }
    return reporter.poison(wishes.pop("report"), **wishes)


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a test say which minute it is."""
    now = [29_000_000]
    monkeypatch.setattr(counting, "_this_minute", lambda: now[0])
    return now


# Failures


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


# The spool


def test_spools_when_the_server_is_away_and_delivers_when_it_is_back(
    server: FakeServer, spooling: Reporter
) -> None:
    server.stop()
    reports = [failure() for _ in range(5)]

    receipts = [poison(spooling, report=r, when_away="spool") for r in reports]
    waiting = spooling.spooled
    server.start()

    assert {r.spooled for r in receipts} == {True}
    assert waiting == 5
    server.until(lambda: len(server.reports.failures) == 5)
    assert list(server.reports.failures) == [str(r.report_id) for r in reports]
    server.until(lambda: spooling.spooled == 0)
    assert poison(spooling, when_away="spool").spooled is False


def test_spooling_needs_a_folder(reporter: Reporter) -> None:
    with pytest.raises(Misconfigured, match="folder"):
        poison(reporter, when_away="spool")


def test_a_full_disk_raises_full_and_nothing_counts_as_kept(
    server: FakeServer, spooling: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.stop()

    def full(*_: object, **__: object) -> None:
        raise Full("no room: make room")

    monkeypatch.setattr(Spool, "append", full)

    with pytest.raises(Full, match="make room"):
        poison(spooling, when_away="spool")

    assert spooling.spooled == 0


def test_a_rejected_spooled_report_is_set_aside_with_a_warning(
    server: FakeServer, spooling: Reporter
) -> None:
    server.reports.rejects = lambda item: (
        "no such thing" if item["bookmark"] == "b" else None
    )
    server.stop()
    for bookmark in "abc":
        poison(spooling, report=failure(bookmark=bookmark), when_away="spool")
    server.start()

    server.until(lambda: len(server.reports.failures) == 2)
    server.until(lambda: spooling.spooled == 0)

    assert [f["bookmark"] for f in server.reports.failures.values()] == ["a", "c"]
    assert any("1 reports were rejected" in warning for warning in spooling.warnings)


def test_a_spooled_report_that_no_request_can_hold_is_kept_aside(
    server: FakeServer, spooling: Reporter
) -> None:
    server.stop()
    for _ in range(3):
        poison(spooling, when_away="spool")
    server.faults.answer(413, path="/failures")
    server.start()

    server.until(lambda: spooling.spooled == 0)

    assert len(server.reports.failures) == 0
    assert any("3 reports were rejected" in warning for warning in spooling.warnings)


def test_a_spool_waits_for_a_key_that_is_right(
    server: FakeServer, tmp_path: Path
) -> None:
    key = ["pw_wrong"]
    client = Client([server.url], lambda: key[0])
    reporter = Reporter(client, spool=Spool(tmp_path), refused_pause=0.1)
    server.stop()
    poison(reporter, when_away="spool")
    server.start()
    server.until(lambda: any("API key" in warning for warning in reporter.warnings))

    key[0] = KEY

    server.until(lambda: len(server.reports.failures) == 1)
    server.until(lambda: reporter.warnings == [])
    reporter.close(1)


# Confirmations


@pytest.mark.parametrize("which", ["reporter", "spooling"])
def test_confirmations_are_sent_until_they_are_accepted(
    which: str, server: FakeServer, request: pytest.FixtureRequest
) -> None:
    reporter: Reporter = request.getfixturevalue(which)
    server.stop()
    for number in range(250):
        reporter.confirm(confirmation(f"redrive.{number}"))
    server.faults.lose_answers(1)
    server.start()

    server.until(lambda: len(server.reports.confirmations) == 250)

    assert reporter.flush(60)


def test_a_confirmation_outlives_its_process(
    server: FakeServer, tmp_path: Path
) -> None:
    server.stop()
    before = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    before.confirm(confirmation("redrive.1"))
    before.close(0)
    server.start()

    after = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    after.start()

    server.until(lambda: set(server.reports.confirmations) == {"redrive.1"})
    after.close(1)


def test_a_confirmation_is_kept_in_memory_where_the_disk_is_full(
    server: FakeServer, spooling: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Full

    monkeypatch.setattr(Spool, "append", full)

    spooling.confirm(confirmation("redrive.1"))

    server.until(lambda: set(server.reports.confirmations) == {"redrive.1"})


def test_confirmations_beyond_the_limit_raise_full(
    server: FakeServer, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive_confirmation_queue, "CONFIRMATIONS_LIMIT", 2)
    server.stop()
    for number in range(2):
        reporter.confirm(confirmation(f"redrive.{number}"))

    with pytest.raises(Full, match="spool folder"):
        reporter.confirm(confirmation("redrive.2"))

    server.start()
    server.until(lambda: len(server.reports.confirmations) == 2)


# A disk that turns read-only


@contextmanager
def read_only(monkeypatch: pytest.MonkeyPatch, *calls: str) -> Iterator[None]:
    """Let these calls fail for segments, as on a disk that was mounted read-only."""

    def refuse(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def refusing(what: Any, *rest: Any, **more: Any) -> Any:
            path = Path(f"/proc/self/fd/{what}").readlink() if name in BY_FD else what
            if str(path).endswith(".spool"):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return call(what, *rest, **more)

        return refusing

    with monkeypatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, refuse(name, getattr(os, name)))
        yield


BY_FD = ("ftruncate", "write")


def test_segments_that_cannot_be_taken_over_do_not_delay_other_reports(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Spool(tmp_path)
    before.append("failures", failure(bookmark="left").to_wire(), durable=True)
    before.close()
    reporter = Reporter(
        Client([server.url], KEY),
        spool=Spool(tmp_path),
        refused_pause=0.1,
        adopt_every=0.0,
    )

    with read_only(monkeypatch, "open"):
        reporter.start()
        server.until(lambda: "segments" in str(reporter.warnings))
        reporter.confirm(confirmation("redrive.1"))
        reporter.count(BILLING, handled=3)
        poison(reporter, report=failure(bookmark="now"))
        reporter.flush(60)
        server.until(lambda: server.reports.confirmations and server.reports.counters)
        reports, warnings = [*server.reports.failures.values()], reporter.warnings

    server.until(lambda: len(server.reports.failures) == 2)
    server.until(lambda: reporter.warnings == [])
    reporter.close(1)
    assert [report["bookmark"] for report in reports] == ["now"]
    assert "give it back its rights" in warnings[0]


def test_unremovable_segments_are_warned_about_and_delay_no_reports(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client([server.url], KEY)
    reporter = Reporter(client, spool=Spool(tmp_path), refused_pause=0.1)
    server.stop()
    poison(reporter, report=failure(bookmark="spooled"), when_away="spool")

    with read_only(monkeypatch, "ftruncate", "unlink"):
        server.start()
        server.until(lambda: "segments" in str(reporter.warnings))
        poison(reporter, report=failure(bookmark="now"))
        reporter.confirm(confirmation("redrive.1"))
        server.until(lambda: server.reports.confirmations)
        spooled = reporter.spooled

    server.until(lambda: reporter.warnings == [])
    reporter.close(1)
    after = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    after.start()
    assert after.flush(60)
    after.close(1)
    assert spooled == 0
    assert sorted(r["bookmark"] for r in server.reports.failures.values()) == [
        "now",
        "spooled",
    ]


def test_a_reporter_ends_on_a_disk_that_turned_read_only(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    server.stop()
    poison(reporter, report=failure(bookmark="spooled"), when_away="spool")

    with read_only(monkeypatch, "ftruncate", "unlink", "write"):
        server.start()
        server.until(lambda: reporter.spooled == 0)
        reporter.close(60)
        thread = reporter._sender_thread._thread

    assert thread is not None
    assert not thread.is_alive()
    after = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    after.start()  # what the disk kept is sent once more, and counts once
    server.until(lambda: not list(tmp_path.glob("*.spool")))
    after.close(1)
    assert len(server.reports.failures) == 1


# Counters


def test_a_minute_is_sent_once_it_is_over(
    server: FakeServer, reporter: Reporter, minute: list[int]
) -> None:
    reporter.count(BILLING, handled=2, durations={3: 2})
    reporter.count(BILLING, handled=1, failed=1, durations={3: 1, 0: 1})
    server.until(lambda: not reporter._sender_thread._woken.is_set())
    assert server.reports.counters == {}

    minute[0] += 1

    server.until(lambda: server.reports.counters)
    ((key, report),) = server.reports.counters.items()
    assert key == (str(reporter.id), 1)
    assert (report["handled"], report["failed"]) == (3, 1)
    assert report["duration_ms_hist"] == {"0": 1, "3": 3}
    assert report["minute"] == "2025-02-19T21:20:00+00:00"


def test_a_clock_set_back_does_not_delay_a_minute(minute: list[int]) -> None:
    counters = Counters(failure().report_id)
    counters.count(BILLING, handled=1, durations={})
    minute[0] -= 600

    assert [report.handled for report in counters.batch()] == [1]


def test_a_batch_stays_the_same_until_it_is_confirmed(minute: list[int]) -> None:
    counters = Counters(failure().report_id)
    counters.count(BILLING, handled=1, durations={})
    minute[0] += 1
    first = counters.batch()

    minute[0] -= 1
    counters.count(BILLING, handled=5, durations={})
    minute[0] += 1

    assert counters.batch() == first
    counters.confirm_batch()
    assert [(r.sequence, r.handled) for r in counters.batch()] == [(2, 5)]


def test_a_counter_whose_answer_was_lost_counts_once(
    server: FakeServer, reporter: Reporter
) -> None:
    reporter.count(BILLING, handled=7)
    server.faults.lose_answers(3)

    assert reporter.flush(60)

    assert server.reports.totals()["handled"] == 7


def test_counters_of_a_long_absence_merge_by_the_hour(minute: list[int]) -> None:
    counters = Counters(failure().report_id, minutes_limit=100)
    for _ in range(3_000):
        counters.count(BILLING, handled=1, failed=1, durations={2: 1})
        minute[0] += 1

    assert counters.waiting <= 161
    reports = counters.rest()
    assert sum(report.handled for report in reports) == 3_000
    assert sum(dict(report.duration_ms_hist)[2] for report in reports) == 3_000


def test_counts_beyond_the_limit_of_a_report_do_not_merge(minute: list[int]) -> None:
    counters = Counters(failure().report_id, minutes_limit=2)
    minute[0] -= minute[0] % 60
    for _ in range(9):
        counters.count(BILLING, handled=2**30, durations={})
        minute[0] += 1

    handled = [report.handled for report in counters.rest()]
    assert max(handled) < 2**31
    assert sum(handled) == 9 * 2**30


def test_close_sends_the_minute_under_way(server: FakeServer, client: Client) -> None:
    reporter = Reporter(client)
    reporter.count(BILLING, handled=3)

    reporter.close(60)

    assert server.reports.totals()["handled"] == 3


def test_what_close_cannot_send_is_spooled_for_the_next_process(
    server: FakeServer, tmp_path: Path
) -> None:
    server.stop()
    before = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    before.count(BILLING, handled=3)
    before.close(0.2)
    server.start()

    after = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    after.start()

    server.until(lambda: server.reports.totals()["handled"] == 3)
    after.close(1)


def test_without_a_spool_close_logs_how_much_it_could_not_send(
    server: FakeServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    reporter = Reporter(client)
    reporter.count(BILLING, handled=3)
    reporter.confirm(confirmation("redrive.1"))

    with caplog.at_level(logging.ERROR):
        reporter.close(0.2)

    assert "'counters': 1" in caplog.text
    assert "'confirmations': 1" in caplog.text


def test_a_flush_ends_though_others_go_on_counting(
    server: FakeServer, reporter: Reporter
) -> None:
    stop = threading.Event()

    def count_on() -> None:
        while not stop.is_set():
            reporter.count(BILLING, handled=1)

    threading.Thread(target=count_on).start()
    reporter.count(BILLING, failed=1)

    flushed = reporter.flush(60)
    stop.set()

    assert flushed
    assert server.reports.totals()["failed"] == 1


# Guards, skips, and what a key may not do


def heartbeat(reporter: Reporter, state: GuardState) -> GuardHeartbeat:
    return GuardHeartbeat(
        reporter=reporter.id,
        topic="orders",
        consumer_group="billing",
        client_name="billing-1",
        host=None,
        version=None,
        handler_version=None,
        state=state,
        detail="",
        skips_age_s=None,
        spooled=0,
        suspected=0,
        journal=False,
        failing_since=None,
        at=reporter.now(),
    )


def test_a_heartbeat_is_sent_at_once_when_the_state_changes(
    server: FakeServer, reporter: Reporter
) -> None:
    reporter.set_heartbeat(heartbeat(reporter, GuardState.RUNNING))
    server.until(lambda: server.reports.guards)

    reporter.set_heartbeat(heartbeat(reporter, GuardState.PAUSED))

    server.until(lambda: server.reports.guards["billing-1"]["state"] == "paused")
    assert server.reports.guards["billing-1"]["reporter"] == str(reporter.id)


def test_a_heartbeat_that_was_not_accepted_is_sent_again(
    server: FakeServer, reporter: Reporter
) -> None:
    server.stop()
    reporter.set_heartbeat(heartbeat(reporter, GuardState.HOLDING))
    server.until(lambda: reporter.warnings)
    server.start()

    server.until(lambda: server.reports.guards)


def test_skips_that_were_applied_count_once(
    server: FakeServer, reporter: Reporter
) -> None:
    skip = server.skip_list.add(kind="bookmark", value="1-0")["id"]
    for _ in range(3):
        reporter.count_applied(
            skip=skip, consumer_group="billing", client_name="billing-1", times=1
        )
    server.faults.lose_answers(2)

    assert reporter.flush(60)

    assert server.reports.applied == {skip: 3}


def test_a_kind_that_the_key_may_not_send_does_not_delay_others(
    server: FakeServer, reporter: Reporter
) -> None:
    server.faults.answer(403, path="/confirmations")
    reporter.confirm(confirmation("redrive.1"))
    reporter.count(BILLING, handled=1)

    reporter.flush(60)

    assert poison(reporter).status == "created"
    assert server.reports.totals()["handled"] == 1
    assert any("confirmations" in warning for warning in reporter.warnings)


def test_a_rejected_counter_is_logged_and_not_sent_again(
    server: FakeServer, reporter: Reporter
) -> None:
    server.faults.answer(422, times=1, path="/counters")
    reporter.count(BILLING, handled=1)

    assert reporter.flush(60)

    assert reporter.warnings == ["1 counters were rejected: see the log."]


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
