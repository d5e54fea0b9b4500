"""A fault at each call of the loop is counted, and no message is lost by it."""

from __future__ import annotations

import pytest

from poisonguard.outbox.outcome import SendKind, SendOutcome
from poisonguard.outbox.sweeping import backlog_measurement
from poisonguard.outbox.sweeping.connection import OutboxConnection
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.sweeper import Sweeper
from tests.sdk.outbox_sweeping.faulty_ports import (
    Faults,
    FaultyLocks,
    FaultyPublisher,
    FaultyReporter,
    InjectedFault,
    faulty_connect,
)
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import FAST, work_until

GOOD = 12
# Connect, settings, schema, lock, take-over, claim, look-up, publish, mark, quarantine,
# duplicates, give back, three of figures and more, pruning, two of reports.
FEWEST_CALLS = 20


def prepare(outbox: OutboxTables) -> None:
    """Put messages of each fate: sent, copied, given back, refused, undecodable."""
    outbox.make()
    outbox.drop_unique_index()
    outbox.allow_nulls()
    outbox.put_many(GOOD)
    for _ in "ab":
        outbox.put("copied", b"same")
    for body in (b"one", b"other"):
        outbox.put("twice", body)
    outbox.put("no body", None)
    outbox.put("refused", b"refuse")
    outbox.put("later", b"later", topic="slow")
    outbox.put("old")
    outbox.execute(
        "UPDATE poisonguard_outbox SET sent_at = now() - interval '8 days'"
        " WHERE message_id = 'old'"
    )
    outbox.execute(
        "INSERT INTO poisonguard_outbox_sent VALUES"
        " ('shop', 'old', '\\x00', now() - interval '8 days')"
    )


def run(outbox: OutboxTables, faults: Faults) -> tuple[Sweeper, FaultyPublisher]:
    publisher, reporter = FaultyPublisher(faults), FaultyReporter(faults)
    delayed_ids = set[str]()

    def answer(message: object) -> SendOutcome:
        message_id, body = message.message_id, message.body  # type: ignore[attr-defined]
        if body == b"refuse":
            return SendOutcome(kind=SendKind.REFUSED)
        if body == b"later" and message_id not in delayed_ids:
            delayed_ids.add(message_id)
            return SendOutcome(kind=SendKind.UNSENT)
        return SendOutcome(kind=SendKind.SENT)

    publisher.answer = answer
    sweeper = Sweeper(
        faulty_connect(outbox.dsn, faults),
        FaultyLocks(outbox.dsn, faults),
        publisher,
        reporter=reporter,
        settings=SweeperSettings(**FAST | {"figures_every": 0.01, "prune_every": 0.01}),
    )
    try:
        work_until(
            sweeper,
            lambda: (
                faults.is_over
                and not outbox.waiting
                and not outbox.count("message_id = 'old'")
                and not outbox.count(
                    "quarantined_at IS NOT NULL AND reported_at IS NULL"
                )
            ),
        )
    finally:
        sweeper.close()
    return sweeper, publisher


def count_calls(outbox: OutboxTables) -> list[str]:
    prepare(outbox)
    faults = Faults(None, is_late=False)
    sweeper, _ = run(outbox, faults)
    kinds = {error.kind for error in sweeper.errors.errors}
    assert kinds == {"row quarantined", "unsent"}
    return faults.calls


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_fault_at_each_call_is_counted_and_loses_no_message(
    outbox: OutboxTables, *, is_late: bool
) -> None:
    calls = count_calls(outbox)
    assert len(calls) >= FEWEST_CALLS
    assert {*calls} == {"connect", "wait", "lock", "publish", "report"}

    for place, name in enumerate(calls):
        prepare(outbox)
        faults = Faults(place, is_late=is_late)
        sweeper, publisher = run(outbox, faults)

        noted = [
            error
            for error in sweeper.errors.errors
            if error.kind == InjectedFault.__name__
        ]
        assert [error.count for error in noted] == [1], (place, name)
        assert "InjectedFault" in noted[0].first_stack
        good = {f"m-{number}" for number in range(1, GOOD + 1)} | {"copied", "later"}
        assert publisher.counts.keys() == good, (place, name)
        # A window, once more: where the answer of the broker or of a mark was lost.
        assert max(publisher.counts.values()) <= 2, (place, name)
        assert len(outbox.reasons()) == 4
        assert outbox.count("duplicate_of IS NOT NULL") == 1


def test_a_fault_before_a_transaction_begins_ends_its_connection(
    outbox: OutboxTables,
) -> None:
    faults = Faults(2, is_late=False)  # behind the connect and its settings
    connection = OutboxConnection(faulty_connect(outbox.dsn, faults), SweeperSettings())
    with pytest.raises(InjectedFault):
        backlog_measurement.write(connection)
    assert not connection.is_usable
