"""Reports go to the disk while the server is away, and what becomes of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from poisonguard.errors import Full, Misconfigured
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import Spool
from tests.sdk.failure_report_builder import BILLING, confirmation, failure, poison
from tests.sdk.fake_poisonweb_server import KEY, FakeServer

# Calls that name their file by its descriptor.
BY_FD = ("ftruncate", "write")


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
