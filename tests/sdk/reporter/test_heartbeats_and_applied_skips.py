"""Heartbeats of guards, applied skips, and what a key may not send."""

from __future__ import annotations

from poisonguard.contract import GuardHeartbeat, GuardState
from poisonguard.server.report_sending import Reporter
from tests.sdk.failure_report_builder import BILLING, confirmation, poison
from tests.sdk.fake_poisonweb_server import FakeServer


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
