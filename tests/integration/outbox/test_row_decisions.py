"""People decide about quarantined rows: send all the same, or drop."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import Entry
from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Refused, Unavailable
from apps.outbox import outbox_row_decisions
from apps.outbox.models import Outbox
from apps.outbox.outbox_row_decisions import RowFilter, RowState
from apps.outbox.services.row_decisions import drop_row, send_row
from apps.team.rights import Principal, Scope
from tests.in_memory_queue_broker import Queues
from tests.integration.outbox.outbox_builders import ADMIN, outbox_at
from tests.integration.outbox.test_sweeping_registered_outboxes import sweeping
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until

QUARANTINE = (
    "UPDATE poisonguard_outbox SET quarantined_at = now(),"
    " quarantine_reason = 'two messages under one id', reported_at = now()"
    " WHERE row_id = %s"
)


def quarantined(outbox: OutboxTables, message_id: str = "m-1") -> int:
    row = outbox.put(message_id)
    outbox.execute(QUARANTINE, [row])
    return row


def decide(act: Any, outbox: Outbox, row_id: int, **changes: Any) -> None:
    act(
        **{"outbox": outbox, "row_id": row_id, "principal": ADMIN} | changes,
        now=clock.now(),
    )


@pytest.mark.django_db(transaction=True)
def test_a_row_that_is_released_is_sent_although_another_has_its_id(
    outbox: OutboxTables, broker: Queues
) -> None:
    outbox.drop_unique_index()
    registered = outbox_at(outbox.dsn)
    first, second = outbox.put("m-1", b"one"), outbox.put("m-1", b"two")

    with sweeping():
        wait_until(lambda: outbox.count("quarantined_at IS NOT NULL") == 2)
        decide(send_row, registered, second, reason="the later one is right")
        wait_until(lambda: len(broker.published) == 1)

    assert broker.published[0].body == b"two"
    entry = Entry.objects.filter(action="outbox.row_released").get()
    assert entry.detail == {"row_id": second}
    assert entry.reason == "the later one is right"
    row = outbox_row_decisions.one(registered, first)
    assert row is not None
    assert row.state == "quarantined"


@pytest.mark.django_db
def test_a_dropped_row_stays_and_is_not_sent(outbox: OutboxTables) -> None:
    registered, row_id = outbox_at(outbox.dsn), quarantined(outbox)

    decide(drop_row, registered, row_id)

    row = outbox_row_decisions.one(registered, row_id)
    assert row is not None
    assert row.state == "dropped"
    for act in (drop_row, send_row):
        with pytest.raises(Refused, match="not quarantined"):
            decide(act, registered, row_id)
    assert Entry.objects.filter(action="outbox.row_dropped").count() == 1


@pytest.mark.django_db
def test_waiting_sent_and_absent_rows_cannot_be_decided(outbox: OutboxTables) -> None:
    registered, waiting, done = outbox_at(outbox.dsn), outbox.put("a"), outbox.put("b")
    outbox.execute(
        "UPDATE poisonguard_outbox SET sent_at = now() WHERE row_id = %s", [done]
    )

    for row_id, refusal in ((waiting, Refused), (done, Refused), (2**63 - 1, Absent)):
        for act in (drop_row, send_row):
            with pytest.raises(refusal):
                decide(act, registered, row_id)
    assert outbox.count("dropped_at IS NOT NULL OR released_at IS NOT NULL") == 0


@pytest.mark.django_db
@pytest.mark.parametrize("mark", ["sent_at = now()", "duplicate_of = row_id"])
def test_a_quarantined_row_with_another_mark_is_not_said_to_be_sent_soon(
    outbox: OutboxTables, mark: str
) -> None:
    registered, row_id = outbox_at(outbox.dsn), quarantined(outbox)
    outbox.execute(f"UPDATE poisonguard_outbox SET {mark}")

    with pytest.raises(Refused, match="not quarantined"):
        decide(send_row, registered, row_id)
    assert outbox.column("quarantined_at", row_id) is not None


@pytest.mark.django_db
def test_a_decision_that_is_not_recorded_is_not_carried_out(
    outbox: OutboxTables,
) -> None:
    registered, row_id = outbox_at(outbox.dsn), quarantined(outbox)
    reader = Principal(actor=Actor("user:b"), scopes=frozenset({Scope.POISONS_READ}))

    with pytest.raises(Forbidden):
        decide(drop_row, registered, row_id, principal=reader)
    with pytest.raises(Exception, match="at most"):
        decide(drop_row, registered, row_id, reason="x" * 2_001)

    assert outbox.count("dropped_at IS NULL") == 1


@pytest.mark.django_db
def test_a_row_that_others_have_locked_is_left_with_a_clear_error(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_row_decisions, "READ_MILLISECONDS", "200")
    registered, row_id = outbox_at(outbox.dsn), quarantined(outbox)

    with (
        outbox.connection.transaction(),
        pytest.raises(Unavailable, match="did not answer"),
    ):
        outbox.execute("SELECT FROM poisonguard_outbox FOR UPDATE")
        decide(drop_row, registered, row_id)

    assert not Entry.objects.filter(action="outbox.row_dropped").exists()


@pytest.mark.django_db
def test_a_database_that_falls_silent_is_given_up(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_row_decisions, "READ_MILLISECONDS", "60000")
    monkeypatch.setattr(outbox_row_decisions, "ANSWER_SECONDS", 0.5)
    registered, row_id = outbox_at(outbox.dsn), quarantined(outbox)

    with outbox.connection.transaction(), pytest.raises(Unavailable) as silence:
        outbox.execute("SELECT FROM poisonguard_outbox FOR UPDATE")
        decide(drop_row, registered, row_id)

    # Else the limits of a database that is awake would have ended it.
    assert "timeout" not in str(silence.value)
    assert outbox.count("dropped_at IS NULL") == 1


@pytest.mark.django_db
def test_rows_are_listed_by_state_id_and_topic_whatever_their_columns_hold(
    outbox: OutboxTables,
) -> None:
    registered = outbox_at(outbox.dsn)
    outbox.allow_nulls()
    outbox.drop_unique_index()
    outbox.execute(
        "ALTER TABLE poisonguard_outbox DROP CONSTRAINT poisonguard_outbox_names"
    )
    waiting = outbox.put("m-1")
    broken = outbox.put(None, None, topic=None)
    large = outbox.put("x" * 1_000_000, topic="large")
    outbox.execute(
        "UPDATE poisonguard_outbox SET created_at = 'infinity' WHERE row_id = %s",
        [broken],
    )
    other = quarantined(outbox, "m-2")

    rows = outbox_row_decisions.find(registered, RowFilter(), most=10)

    assert [row.row_id for row in rows] == [other, large, broken, waiting]
    assert (rows[2].message_id, rows[2].topic, rows[2].created_at) == ("", "", None)
    assert len(rows[1].message_id) == 1_000
    assert rows[0].writer_application == "shop"
    by_state = RowFilter(state=RowState.QUARANTINED)
    assert [
        r.row_id for r in outbox_row_decisions.find(registered, by_state, most=9)
    ] == [other]
    by_id = RowFilter(message_id="m-1", before=other)
    assert [r.row_id for r in outbox_row_decisions.find(registered, by_id, most=9)] == [
        waiting
    ]
    by_topic = RowFilter(topic="large")
    assert [
        r.row_id for r in outbox_row_decisions.find(registered, by_topic, most=9)
    ] == [large]
