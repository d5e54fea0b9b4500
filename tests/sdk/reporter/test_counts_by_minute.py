"""What consumers handled is counted by the minute, and each minute once."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from poisonguard.server import counts_by_minute as counting
from poisonguard.server.counts_by_minute import Counters
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import Spool
from tests.sdk.failure_report_builder import BILLING, confirmation, failure
from tests.sdk.fake_poisonweb_server import KEY, FakeServer


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a test say which minute it is."""
    now = [29_000_000]
    monkeypatch.setattr(counting, "_this_minute", lambda: now[0])
    return now


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
