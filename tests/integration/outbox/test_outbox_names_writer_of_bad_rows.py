"""Many rows of one writer that are quarantined: the outbox names the writer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import psycopg
import pytest

from apps.core import clock
from apps.outbox.models import Outbox, OutboxActivity
from apps.outbox.services import quarantined_rows_and_messages
from apps.outbox.services import sweeper_activity as notes
from apps.outbox.services.sweeper_activity import FLOOD_ROWS, SweeperNote
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeping import decision_writeback_thread
from tests.in_memory_queue_broker import Queues
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.outbox.test_quarantined_row_follows_message import report
from tests.integration.outbox.test_sweeping_registered_outboxes import (
    activity,
    sweeping,
)
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CORRUPT = "UPDATE poisonguard_outbox SET body = NULL WHERE row_id = ANY (%s)"
SET_ASIDE = (
    "UPDATE poisonguard_outbox SET quarantined_at = now(), quarantine_cause ="
    " 'undecodable', quarantine_reason = 'body is NULL'"
)


@pytest.fixture
def registered(outbox: OutboxTables, broker: Queues) -> Outbox:
    outbox.allow_nulls()
    return outbox_at(outbox.dsn)


def corrupt(outbox: OutboxTables, rows: Sequence[int], application: str) -> None:
    with psycopg.connect(outbox.dsn, application_name=application) as corrupter:
        corrupter.execute(CORRUPT, [list(rows)])


def put(outbox: OutboxTables, count: int) -> list[int]:
    outbox.put_many(count)
    rows = outbox.execute("SELECT row_id FROM poisonguard_outbox ORDER BY row_id")
    return [row_id for (row_id,) in rows]


def test_the_writer_of_many_quarantined_rows_is_named(
    outbox: OutboxTables, registered: Outbox
) -> None:
    rows = put(outbox, 140)
    corrupt(outbox, rows[:120], "repair script")
    corrupt(outbox, rows[120:130], "other")

    with sweeping():
        wait_until(lambda: activity(registered).flood_rows == 120)
        wait_until(lambda: "120 rows of one writer" in activity(registered).detail)

    note = activity(registered)
    ((user,),) = outbox.execute("SELECT session_user")
    assert note.flood_writer.startswith(
        f"user {user}, application repair script, address "
    )
    assert note.state == "sweeping"
    assert note.flood_writer in note.detail


def test_a_flood_is_over_after_ten_minutes(
    outbox: OutboxTables, registered: Outbox
) -> None:
    put(outbox, 3)
    outbox.execute(SET_ASIDE)
    report(outbox, registered)
    now = clock.now()
    assert activity(registered).flood_rows == 3

    quarantined_rows_and_messages.note_ends_of_floods(
        now=now + timedelta(minutes=9, seconds=50)
    )
    assert activity(registered).flood_rows == 3
    later = now + timedelta(minutes=10)
    decision_writeback_thread.DecisionWriteback(clock=lambda: later).settle_all()

    note = activity(registered)
    assert (note.flood_rows, note.flood_writer) == (0, "")


def test_a_report_that_comes_twice_counts_once(
    outbox: OutboxTables, registered: Outbox
) -> None:
    put(outbox, 2)
    outbox.execute(SET_ASIDE)
    report(outbox, registered)
    outbox.execute("UPDATE poisonguard_outbox SET reported_at = NULL")
    report(outbox, registered)

    assert activity(registered).flood_rows == 2


def test_the_flood_of_one_outbox_is_not_that_of_another(
    outbox: OutboxTables, registered: Outbox
) -> None:
    other = outbox_at(outbox.dsn, name="other", schema="other")
    put(outbox, 2)
    outbox.execute(SET_ASIDE)
    report(outbox, registered)

    quarantined_rows_and_messages.note_flood(outbox_id=other.pk, now=clock.now())

    assert activity(other).flood_rows == 0
    assert activity(registered).flood_rows == 2


def test_rows_whose_writer_no_trigger_noted_are_counted_too(
    outbox: OutboxTables, registered: Outbox
) -> None:
    outbox.execute("DROP TRIGGER poisonguard_outbox_writer ON poisonguard_outbox")
    put(outbox, 2)
    outbox.execute(SET_ASIDE)
    report(outbox, registered)

    note = activity(registered)
    assert (note.flood_rows, note.flood_writer) == (2, "a writer that no trigger noted")


def test_a_few_rows_are_no_flood_and_errors_come_before_one(
    registered: Outbox,
) -> None:
    OutboxActivity.objects.update(flood_rows=FLOOD_ROWS - 1, flood_writer="user x")
    note = SweeperNote(state=SweeperState.BROKEN, detail="failed to mark")

    notes.note(outbox_id=registered.pk, note=note, errors=(), now=clock.now())
    assert activity(registered).detail == "failed to mark"

    OutboxActivity.objects.update(flood_rows=FLOOD_ROWS)
    notes.note(outbox_id=registered.pk, note=note, errors=(), now=clock.now())
    assert activity(registered).detail == (
        "failed to mark. 100 rows of one writer were quarantined within ten minutes:"
        " user x"
    )
