"""A decision about a row is one about its message, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core import clock
from apps.core.errors import Refused, Unavailable
from apps.outbox import outbox_row_decisions
from apps.outbox.models import Outbox, OutboxError, QuarantineRecord
from apps.outbox.services import quarantined_rows_and_messages
from apps.outbox.services.outbox_registration import remove_outbox
from apps.outbox.services.row_decisions import drop_row, send_row
from apps.outbox.sweeper_and_row_states import QuarantineState
from apps.outbox.sweeping import decision_writeback_thread
from apps.outbox.sweeping.decision_writeback_thread import DecisionWriteback
from apps.outbox.sweeping.quarantine_capture import capture_quarantined
from apps.poison.models import Failure, Poison, Problem, Redrive
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from poisonguard.contract import Cause
from poisonguard.outbox.message import OutboxMessage, digest
from poisonguard.outbox.sweeping import row_quarantine_and_report
from poisonguard.outbox.sweeping.connection import OutboxConnection, connecting_to
from poisonguard.outbox.sweeping.row_quarantine_and_report import (
    QuarantinedRow,
    Writer,
)
from poisonguard.outbox.sweeping.settings import SweeperSettings
from tests.in_memory_queue_broker import Queues
from tests.integration.outbox.outbox_builders import (
    ADMIN,
    events,
    outbox_at,
    quarantined_row,
)
from tests.integration.outbox.test_row_decisions import QUARANTINE, decide
from tests.integration.outbox.test_sweeping_registered_outboxes import sweeping
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.triage_operation_runner import (
    AwayPublisher,
    confirm,
    preview,
    redriven,
    run,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def registered(outbox: OutboxTables, broker: Queues) -> Outbox:
    shop = outbox_at(outbox.dsn)
    Topic.objects.create(name="orders", broker=events(), native_name="orders")
    return shop


@pytest.fixture
def settling() -> DecisionWriteback:
    return DecisionWriteback(clock=clock.now)


def put_quarantined_row(
    outbox: OutboxTables, message_id: str = "m-1", body: bytes = b"b"
) -> int:
    """Put a row, and quarantine it as a sweeper does, up to its report."""
    row_id = outbox.put(message_id, body, headers=[b"name", b"\xff"])
    outbox.execute(
        QUARANTINE.replace("reported_at = now()", "reported_at = NULL"), [row_id]
    )
    return row_id


def unreported(outbox: OutboxTables) -> list[QuarantinedRow]:
    connection = OutboxConnection(connecting_to(outbox.dsn), SweeperSettings())
    try:
        rows = row_quarantine_and_report.unreported_rows(connection, [])
        row_quarantine_and_report.mark_reported(
            connection, [row.row_id for row in rows]
        )
        return rows
    finally:
        connection.close()


def report(outbox: OutboxTables, registered: Outbox) -> None:
    rows = unreported(outbox)
    capture_quarantined(outbox=registered, rows=rows, now=clock.now())


def act(verb: Verb, *poisons: Poison, **selection: Any) -> Operation:
    now = clock.now()
    ids = [poison.pk for poison in poisons]
    operation = confirm(
        ADMIN, preview(ADMIN, now, verb=verb, ids=ids, **selection), now
    )
    run(operation, now)
    return operation


def state(registered: Outbox, row_id: int) -> str:
    row = outbox_row_decisions.one(registered, row_id)
    assert row is not None
    return row.state


CAUSES = {
    "two messages under one id": (
        "two messages under one id: rows 12, 99 are different",
        "two messages under one id: rows 12, 13, 99 are different",
        "two messages under one id: row 7 is quarantined with it",
        "two messages under one id: another message with it was sent at 2026-05-18"
        " 11:59:07.5+00",
    ),
    "it cannot be read": (
        'it cannot be read: invalid byte sequence for encoding "UTF8": 0xff',
        'it cannot be read: invalid byte sequence for encoding "UTF8": 0xe9 0x20',
    ),
    "message_id is not UTF-<n>": (
        "message_id is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 3:"
        " invalid start byte",
        "message_id is not UTF-8: 'utf-8' codec can't decode bytes in position 3-4:"
        " unexpected end of data",
    ),
    "body has <n> bytes: too many": (
        "body has 134,217,729 bytes: too many",
        "body has 999 bytes: too many",
    ),
    'it fails to mark: new row for relation "poisonguard_outbox" violates check'
    ' constraint "few"': tuple(
        'it fails to mark: new row for relation "poisonguard_outbox" violates check'
        f' constraint "few" DETAIL: Failing row contains ({row})'
        for row in ("107, shop, m-ab, orders", "8, shop, m-cd, invoices")
    ),
    "the broker refuses it: there is no queue": (
        "the broker refuses it: there is no queue",
    ),
    "the broker refuses it: too large": ("the broker refuses it: too large",),
}


def test_rows_of_one_cause_are_one_problem_whoever_wrote_them(
    registered: Outbox,
) -> None:
    reasons = [reason for group in CAUSES.values() for reason in group]
    writers = (
        Writer("", "", "", "", ""),
        Writer("bob", "nightly.sh", "10.1.2.3", "71", "12:00"),
        Writer("alice", "psql", "", "72", "13:00"),
    )
    rows = [
        quarantined_row(
            107 + number,
            clock.now(),
            cause=Cause.REJECTED,
            reason=reason,
            writer=writers[number % 3],
        )
        for number, reason in enumerate(reasons)
    ]

    capture_quarantined(outbox=registered, rows=rows, now=clock.now())

    problems = Problem.objects.filter(title="QuarantinedOutboxRow")
    assert {problem.summary for problem in problems} == set(CAUSES)
    texts = Failure.objects.values_list("error_message", flat=True)
    assert sum("written by: user bob, application nightly.sh" in t for t in texts) == 5
    assert all("Row 1" in text for text in texts)


def test_a_message_has_as_many_attempts_as_its_row(
    outbox: OutboxTables, registered: Outbox
) -> None:
    row_id = put_quarantined_row(outbox)

    for failures, attempts in enumerate((1, 2, 5), 1):
        outbox.execute("UPDATE poisonguard_outbox SET attempts = %s", [attempts])
        rows = unreported(outbox)
        for _ in range(2):  # an answer may be lost
            capture_quarantined(outbox=registered, rows=rows, now=clock.now())
        poison = Poison.objects.get()
        assert (poison.attempts, poison.failures) == (attempts, failures)
        decide(send_row, registered, row_id)
        outbox.execute(
            QUARANTINE.replace("reported_at = now()", "reported_at = NULL"), [row_id]
        )


def test_a_row_of_another_database_has_the_attempts_of_its_own(
    outbox: OutboxTables, registered: Outbox
) -> None:
    row_id = put_quarantined_row(outbox)
    for message_id in ("m-1", "m-2"):
        outbox.execute(
            "UPDATE poisonguard_outbox SET attempts = 3, message_id = %s", [message_id]
        )
        outbox.execute(
            QUARANTINE.replace("reported_at = now()", "reported_at = NULL"), [row_id]
        )
        report(outbox, registered)

    assert set(Failure.objects.values_list("attempts", flat=True)) == {3}


def test_a_message_that_is_requeued_sends_its_row_for_good(
    outbox: OutboxTables,
    broker: Queues,
    registered: Outbox,
    settling: DecisionWriteback,
) -> None:
    row_id, other = put_quarantined_row(outbox), put_quarantined_row(outbox, "m-2")
    report(outbox, registered)
    writer = outbox.column("writer_application", row_id)

    act(Verb.REDRIVE, Poison.objects.get(message_id="m-1"))
    assert state(registered, row_id) == "quarantined"
    settling.settle_all()

    assert state(registered, row_id) == "sent"
    assert state(registered, other) == "quarantined"
    assert outbox.count("quarantined_at IS NOT NULL") == 1
    assert outbox.column("writer_application", row_id) == writer
    message = OutboxMessage(
        producer="shop",
        message_id="m-1",
        topic="orders",
        body=b"b",
        headers=((b"name", b"\xff"),),
    )
    assert outbox.execute("SELECT * FROM poisonguard_outbox_sent")[0][:3] == (
        "shop",
        "m-1",
        digest(message),
    )
    assert len(broker.published) == 1
    with sweeping():
        outbox.put("m-3")
        wait_until(lambda: len(broker.published) == 2)
    for decision in (send_row, drop_row):
        with pytest.raises(Refused, match="not quarantined"):
            decide(decision, registered, row_id)


def test_a_message_that_is_dropped_and_restored_takes_its_row_along(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    poison = Poison.objects.get()
    entries = Entry.objects.filter(subject="outbox:shop").count()

    act(Verb.DROP, poison)
    settling.settle_all()
    assert state(registered, row_id) == "dropped"
    act(Verb.RESTORE, poison)
    settling.settle_all()
    assert state(registered, row_id) == "quarantined"
    act(Verb.DROP, poison)
    act(Verb.RESTORE, poison)
    act(Verb.REDRIVE, poison)
    settling.settle_all()
    assert state(registered, row_id) == "sent"
    assert Entry.objects.filter(subject="outbox:shop").count() == entries


def test_a_row_that_is_sent_gives_its_message_back(
    outbox: OutboxTables, broker: Queues, registered: Outbox
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    poison = Poison.objects.get()

    decide(send_row, registered, row_id)

    poison.refresh_from_db()
    assert poison.label == "given back"
    redrive = Redrive.objects.get()
    assert (redrive.queue, redrive.n) == ("outbox/shop", 1)
    assert redrive.detail == f"row {row_id} is sent by the outbox shop"
    for verb in (Verb.REDRIVE, Verb.DROP):
        with pytest.raises(Refused, match="its outbox sends it: a requeue makes a"):
            act(verb, poison)
    with pytest.raises(Refused, match="not dropped"):
        act(Verb.RESTORE, poison)
    with sweeping():
        wait_until(lambda: broker.published)
    assert len(broker.published) == 1


def test_a_row_that_is_dropped_drops_its_message_until_triage_restores_it(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    poison = Poison.objects.get()

    decide(drop_row, registered, row_id)

    poison.refresh_from_db()
    assert poison.state == "dropped"
    settling.settle_all()
    assert state(registered, row_id) == "dropped"
    act(Verb.RESTORE, poison)
    settling.settle_all()
    assert state(registered, row_id) == "quarantined"


def test_a_released_row_that_is_quarantined_again_opens_its_message(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    decide(send_row, registered, row_id)
    outbox.execute(
        QUARANTINE.replace("reported_at = now()", "reported_at = NULL"), [row_id]
    )
    settling.settle_all()
    assert state(registered, row_id) == "quarantined"

    report(outbox, registered)

    poison = Poison.objects.get()
    assert (poison.state, poison.failures) == ("open", 2)
    act(Verb.REDRIVE, poison)
    settling.settle_all()
    assert state(registered, row_id) == "sent"


@pytest.mark.parametrize(
    ("decision", "label"), [(send_row, "given back"), (drop_row, "dropped")]
)
def test_a_decision_before_the_message_is_here_is_one_about_the_message(
    outbox: OutboxTables,
    registered: Outbox,
    settling: DecisionWriteback,
    decision: Callable[..., None],
    label: str,
) -> None:
    row_id = put_quarantined_row(outbox)
    in_flight = unreported(outbox)
    decide(decision, registered, row_id)
    settling.settle_all()

    capture_quarantined(outbox=registered, rows=in_flight, now=clock.now())
    capture_quarantined(outbox=registered, rows=in_flight, now=clock.now())

    assert Poison.objects.get().label == label
    settling.settle_all()
    expected = "waiting" if decision is send_row else "dropped"
    assert state(registered, row_id) == expected


@pytest.mark.parametrize("decision", [send_row, drop_row])
@pytest.mark.parametrize(
    ("verb", "sentence"),
    [(Verb.REDRIVE, "was requeued"), (Verb.DROP, "was dropped: restore it first")],
)
def test_who_decides_about_the_row_after_triage_is_refused(
    outbox: OutboxTables,
    registered: Outbox,
    decision: Callable[..., None],
    verb: Verb,
    sentence: str,
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    act(verb, Poison.objects.get())

    with pytest.raises(Refused, match=sentence):
        decide(decision, registered, row_id)

    assert state(registered, row_id) == "quarantined"
    assert not Entry.objects.filter(action__startswith="outbox.row_").exists()


@pytest.mark.parametrize("decision", [send_row, drop_row])
def test_who_decides_about_the_row_while_triage_sends_is_refused(
    outbox: OutboxTables, registered: Outbox, decision: Callable[..., None]
) -> None:
    row_id, now = put_quarantined_row(outbox), clock.now()
    report(outbox, registered)
    poison = Poison.objects.get()
    operation = confirm(ADMIN, preview(ADMIN, now, ids=[poison.pk]), now)
    run(operation, now, by=AwayPublisher)

    with pytest.raises(Refused, match=f"Operation {operation.pk} has the message"):
        decide(decision, registered, row_id)

    assert state(registered, row_id) == "quarantined"


def test_of_a_person_at_the_row_and_one_in_triage_the_first_wins(
    outbox: OutboxTables, broker: Queues, registered: Outbox
) -> None:
    row_id, now = put_quarantined_row(outbox), clock.now()
    report(outbox, registered)
    poison = Poison.objects.get()
    draft = preview(ADMIN, now, ids=[poison.pk])

    def send() -> str:
        try:
            decide(send_row, registered, row_id)
        except Refused as refusal:
            return str(refusal)
        finally:
            connections.close_all()
        return "sent"

    with ThreadPoolExecutor(1) as others, transaction.atomic():
        operation = confirm(ADMIN, draft, now)
        at_the_row = others.submit(send)
        with pytest.raises(TimeoutError):
            at_the_row.result(timeout=0.5)
        assert outbox.count("quarantined_at IS NULL") == 0
    assert f"Operation {operation.pk} has the message" in at_the_row.result()
    run(operation, now)
    assert len(broker.published) == 1


def test_a_decision_whose_commit_is_lost_is_carried_out_later(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    # The trigger of a stranger, which fails the commit.
    outbox.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'no'; END $$"
    )
    outbox.execute(
        "CREATE CONSTRAINT TRIGGER refusal AFTER UPDATE ON poisonguard_outbox"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    with pytest.raises((Unavailable, Refused)):
        decide(send_row, registered, row_id)
    assert state(registered, row_id) == "quarantined"
    assert Poison.objects.get().label == "given back"

    settling.settle_all()
    assert state(registered, row_id) == "quarantined"
    assert OutboxError.objects.get().step == "settle rows"
    outbox.execute("DROP TRIGGER refusal ON poisonguard_outbox")
    DecisionWriteback(clock=clock.now).settle_all()

    assert state(registered, row_id) == "waiting"


def test_a_message_that_failed_again_after_its_requeue_leaves_its_row_sent(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    poison = Poison.objects.get()
    redriven(poison, clock.now())
    Redrive.objects.update(outcome="recurred", answered_at=clock.now())
    Poison.objects.update(state="open")

    settling.settle_all()

    assert state(registered, row_id) == "sent"
    assert Poison.objects.get().state == "open"


def test_a_send_that_was_refused_leaves_the_row_quarantined(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    redriven(Poison.objects.get(), clock.now())
    Redrive.objects.update(outcome="refused", sent_at=None)
    Poison.objects.update(state="open")

    settling.settle_all()

    assert state(registered, row_id) == "quarantined"
    assert not QuarantineRecord.objects.exclude(state="quarantined").exists()


@pytest.mark.parametrize(
    ("is_claimed", "expected"), [(True, "waiting"), (False, "sent")]
)
def test_a_row_that_waits_all_the_same_is_marked_unless_it_is_being_sent(
    outbox: OutboxTables,
    registered: Outbox,
    settling: DecisionWriteback,
    is_claimed: bool,
    expected: str,
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    outbox.execute(
        "UPDATE poisonguard_outbox SET quarantined_at = NULL, claim_token ="
        " CASE WHEN %s THEN gen_random_uuid() END",
        [is_claimed],
    )
    act(Verb.REDRIVE, Poison.objects.get())

    settling.settle_all()
    assert state(registered, row_id) == expected
    assert QuarantineRecord.objects.get().state == (
        "quarantined" if is_claimed else "sent"
    )

    outbox.execute("UPDATE poisonguard_outbox SET sent_at = now()")
    DecisionWriteback(clock=clock.now).settle_all()
    assert QuarantineRecord.objects.get().state == "sent"


def test_a_dropped_row_that_waits_all_the_same_is_not_sent(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    outbox.execute("UPDATE poisonguard_outbox SET quarantined_at = NULL")
    act(Verb.DROP, Poison.objects.get())

    settling.settle_all()

    assert state(registered, row_id) == "dropped"


def test_a_restored_message_whose_row_was_sent_is_not_open(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    put_quarantined_row(outbox)
    report(outbox, registered)
    poison = Poison.objects.get()
    act(Verb.DROP, poison)
    settling.settle_all()
    outbox.execute("UPDATE poisonguard_outbox SET sent_at = now()")
    act(Verb.RESTORE, poison)

    settling.settle_all()

    poison.refresh_from_db()
    assert poison.label == "given back"


def test_a_restored_message_whose_row_was_deleted_stays_open(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    put_quarantined_row(outbox)
    report(outbox, registered)
    poison = Poison.objects.get()
    act(Verb.DROP, poison)
    settling.settle_all()
    outbox.execute("DELETE FROM poisonguard_outbox")
    act(Verb.RESTORE, poison)

    settling.settle_all()

    poison.refresh_from_db()
    assert poison.state == "open"
    assert not quarantined_rows_and_messages.rows_awaiting_writeback().exists()


def test_a_row_that_is_locked_is_left_for_later_and_the_others_are_settled(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    first, second = put_quarantined_row(outbox), put_quarantined_row(outbox, "m-2")
    report(outbox, registered)
    act(Verb.DROP, *Poison.objects.all())

    with outbox.connection.transaction():
        outbox.execute(
            "SELECT FROM poisonguard_outbox WHERE row_id = %s FOR UPDATE", [first]
        )
        settling.settle_all()

    assert state(registered, first) == "quarantined"
    assert state(registered, second) == "dropped"
    assert OutboxError.objects.get().kind == "LockNotAvailable"
    settling.settle_all()  # a minute has not passed
    assert state(registered, first) == "quarantined"
    DecisionWriteback(clock=lambda: clock.now() + timedelta(minutes=2)).settle_all()
    assert state(registered, first) == "dropped"


def test_a_database_that_is_away_does_not_keep_others_from_being_settled(
    outbox: OutboxTables, broker: Queues, settling: DecisionWriteback
) -> None:
    away = outbox_at("postgresql://a:b@127.0.0.1:1/none", name="away")
    later = outbox_at(outbox.dsn, name="later")
    row_id = put_quarantined_row(outbox)
    report(outbox, later)
    QuarantineRecord.objects.create(
        outbox=away,
        row_id=7,
        state="dropped",
        is_settled=False,
        quarantined_at=clock.now(),
        noted_at=clock.now(),
    )
    act(Verb.DROP, Poison.objects.get())

    settling.settle_all()

    assert state(later, row_id) == "dropped"
    assert OutboxError.objects.get().outbox_id == away.pk


def test_rows_of_the_database_that_an_outbox_had_before_are_left_alone(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    rows = [put_quarantined_row(outbox, f"m-{number}") for number in range(3)]
    report(outbox, registered)
    for poison, verb in zip(
        Poison.objects.order_by("message_id"), [Verb.REDRIVE, Verb.DROP], strict=False
    ):
        act(verb, poison)
    outbox.execute("UPDATE poisonguard_outbox SET message_id = 'new' || message_id")
    QuarantineRecord.objects.filter(row_id=rows[2]).update(
        state="released", is_settled=False
    )

    settling.settle_all()

    assert [state(registered, row_id) for row_id in rows] == ["quarantined"] * 3


def test_a_row_of_another_database_with_the_same_number_is_not_decided(
    outbox: OutboxTables, registered: Outbox
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    decide(send_row, registered, row_id)
    outbox.execute(
        "UPDATE poisonguard_outbox SET message_id = 'other', body = 'other',"
        " quarantined_at = now() - interval '1 day', reported_at = NULL"
    )

    report(outbox, registered)

    assert Poison.objects.get(message_id="other").state == "open"
    assert QuarantineRecord.objects.get().state == "quarantined"


def test_a_refused_send_after_a_release_does_not_count_as_one(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    decide(send_row, registered, row_id)
    outbox.execute(QUARANTINE.replace("= now() W", "= NULL W"), [row_id])
    report(outbox, registered)
    redriven(Poison.objects.get(), clock.now())
    Redrive.objects.filter(n=2).update(outcome="refused", sent_at=None)
    Poison.objects.update(state="open")

    settling.settle_all()

    assert state(registered, row_id) == "quarantined"


def test_a_row_that_is_quarantined_again_is_decided_before_its_report(
    outbox: OutboxTables, registered: Outbox
) -> None:
    row_id = put_quarantined_row(outbox)
    report(outbox, registered)
    decide(send_row, registered, row_id)
    outbox.execute(QUARANTINE.replace("= now() W", "= NULL W"), [row_id])

    decide(drop_row, registered, row_id)

    assert state(registered, row_id) == "dropped"
    report(outbox, registered)
    assert Poison.objects.get().state == "dropped"


def test_what_was_quarantined_again_meanwhile_is_not_stored_as_settled(
    outbox: OutboxTables, registered: Outbox
) -> None:
    put_quarantined_row(outbox)
    report(outbox, registered)
    act(Verb.REDRIVE, Poison.objects.get())
    keys = quarantined_rows_and_messages.first_unsettled(
        registered, passed_by=[], most=9
    )
    [decided] = quarantined_rows_and_messages.unsettled_rows(keys)
    QuarantineRecord.objects.update(quarantined_at=clock.now())

    quarantined_rows_and_messages.store_all(
        outbox=registered, states=[(decided, QuarantineState.SENT)], now=clock.now()
    )

    assert QuarantineRecord.objects.get().state == "quarantined"


def test_rows_are_settled_in_parts(
    outbox: OutboxTables,
    registered: Outbox,
    settling: DecisionWriteback,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision_writeback_thread, "AT_ONCE", 2)
    for number in range(5):
        put_quarantined_row(outbox, f"m-{number}")
    report(outbox, registered)
    act(Verb.DROP, *Poison.objects.all())

    settling.settle_all()

    assert outbox.count("dropped_at IS NOT NULL") == 5
    assert (
        QuarantineRecord.objects.filter(state="dropped", is_settled=True).count() == 5
    )


@pytest.mark.parametrize("verb", [Verb.DROP, Verb.REDRIVE])
def test_many_rows_are_settled_by_few_statements(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback, verb: Verb
) -> None:
    for number in range(40):
        put_quarantined_row(outbox, f"m-{number}")
    report(outbox, registered)
    act(verb, *Poison.objects.all())
    outbox.execute(
        "CREATE TABLE statements (at timestamptz DEFAULT clock_timestamp());"
        "CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO statements DEFAULT VALUES; RETURN NULL; END $$;"
        "CREATE TRIGGER counting AFTER UPDATE ON poisonguard_outbox"
        " FOR EACH STATEMENT EXECUTE FUNCTION count_it()"
    )

    with CaptureQueriesContext(connections["default"]) as queries:
        settling.settle_all()

    assert len(queries) < 20
    assert outbox.execute("SELECT count(*) FROM statements") == [(1,)]
    expected = "dropped" if verb is Verb.DROP else "sent"
    assert (
        QuarantineRecord.objects.filter(state=expected, is_settled=True).count() == 40
    )


def large_quarantined_rows(
    outbox: OutboxTables, registered: Outbox, *, number: int, size: int
) -> None:
    """Quarantine rows, enlarge their bodies, and requeue their messages."""
    for each in range(number):
        put_quarantined_row(outbox, f"m-{each}")
    report(outbox, registered)
    outbox.execute(
        "UPDATE poisonguard_outbox SET body = convert_to(repeat('x', %s), 'UTF8')",
        [size],
    )
    act(Verb.REDRIVE, *Poison.objects.all())


def test_requeued_rows_with_large_bodies_are_marked_as_sent(
    outbox: OutboxTables, registered: Outbox, settling: DecisionWriteback
) -> None:
    large_quarantined_rows(outbox, registered, number=20, size=1_000_000)

    settling.settle_all()

    assert outbox.count("sent_at IS NOT NULL") == 20
    assert outbox.execute("SELECT count(*) FROM poisonguard_outbox_sent") == [(20,)]


def test_rows_whose_bodies_are_too_much_together_are_settled_in_smaller_parts(
    outbox: OutboxTables, registered: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_writeback_thread, "MOST_BYTES", 500_000)
    large_quarantined_rows(outbox, registered, number=4, size=100_000)
    minutes = count()
    start = clock.now()
    settling = DecisionWriteback(
        clock=lambda: start + next(minutes) * timedelta(minutes=2)
    )

    settling.settle_all()

    assert outbox.count("sent_at IS NOT NULL") == 4


def test_a_row_that_cannot_be_digested_is_marked_as_sent_all_the_same(
    outbox: OutboxTables,
    registered: Outbox,
    settling: DecisionWriteback,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outbox.allow_nulls()
    rows = [put_quarantined_row(outbox, f"m-{number}") for number in range(2)]
    report(outbox, registered)
    outbox.execute(
        "UPDATE poisonguard_outbox SET body = NULL WHERE row_id = %s", [rows[0]]
    )
    outbox.execute(
        "UPDATE poisonguard_outbox SET headers = ARRAY[NULL, NULL]::bytea[]"
        " WHERE row_id = %s",
        [rows[1]],
    )
    act(Verb.REDRIVE, *Poison.objects.all())

    settling.settle_all()

    assert [state(registered, row_id) for row_id in rows] == ["sent", "sent"]
    assert outbox.execute("SELECT * FROM poisonguard_outbox_sent") == []
    assert not OutboxError.objects.exists()


def test_the_sweeper_process_settles_rows(
    outbox: OutboxTables, registered: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_writeback_thread, "LOOK_SECONDS", 0.05)
    outbox.allow_nulls()
    row_id = outbox.put("m-1", None)

    with sweeping():
        wait_until(Poison.objects.exists)
        act(Verb.DROP, Poison.objects.get())
        wait_until(lambda: state(registered, row_id) == "dropped")


def test_a_fault_of_a_look_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decision_writeback_thread, "LOOK_SECONDS", 0.01)
    looks = list[int]()

    def fail(**_: datetime) -> None:
        looks.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(quarantined_rows_and_messages, "prune_settled", fail)
    thread = DecisionWriteback(clock=clock.now)
    thread.start()
    wait_until(lambda: len(looks) > 2)
    thread.stop()

    assert thread.join(60)
    assert "ZeroDivisionError" in caplog.text


def test_a_row_that_was_sent_or_released_is_forgotten_after_a_day(
    outbox: OutboxTables, registered: Outbox
) -> None:
    first, second = put_quarantined_row(outbox), put_quarantined_row(outbox, "m-2")
    put_quarantined_row(outbox, "m-3")
    report(outbox, registered)
    decide(send_row, registered, first)
    decide(drop_row, registered, second)
    day = timedelta(days=1)

    DecisionWriteback(
        clock=lambda: clock.now() + day - timedelta(minutes=1)
    ).settle_all()
    assert QuarantineRecord.objects.count() == 3
    DecisionWriteback(clock=lambda: clock.now() + day).settle_all()

    states = QuarantineRecord.objects.order_by("row_id").values_list("state", flat=True)
    assert list(states) == ["dropped", "quarantined"]


def test_a_report_of_an_outbox_that_was_removed_is_captured(
    outbox: OutboxTables, registered: Outbox
) -> None:
    put_quarantined_row(outbox)
    remove_outbox(name="shop", principal=ADMIN, now=clock.now())

    report(outbox, registered)

    assert Poison.objects.get().state == "open"
    assert not QuarantineRecord.objects.exists()
