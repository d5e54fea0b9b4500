"""Confirmations of redrives are sent until the server accepts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from poisonguard.errors import Full
from poisonguard.server import redrive_confirmation_queue
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import Spool
from tests.sdk.failure_report_builder import confirmation
from tests.sdk.fake_poisonweb_server import KEY, FakeServer


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
