"""A decision about a quarantined row holds for its message, and the reverse.

The message decides (docs/adr/0034): a decision about the row locks its poison, and is
refused where triage acted on it first. Triage, which does not know of rows, finds the
poison decided. What it decided is carried out on the row later: see `settlement`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Value, When

from apps.core.errors import Refused
from apps.core.text_cleaning import storable
from apps.outbox.models import Outbox, OutboxActivity, QuarantineRecord
from apps.outbox.outbox_row_decisions import Quarantine
from apps.outbox.sweeper_and_row_states import FINAL, QuarantineState
from apps.poison.models import Hold, Poison, Redrive
from apps.poison.services import drop_restore_and_give_back
from apps.poison.services.locking import lock
from apps.poison.states import PoisonState, RedriveOutcome
from poisonguard.outbox.sweeping.row_quarantine_and_report import QuarantinedRow

WRITER = ("writer_user", "writer_application", "writer_address")
WRITER_LIMIT = 255
FLOOD_TIME = timedelta(minutes=10)
# A report may be on its way while a person decides.
FINAL_FOR = timedelta(days=1)
SENT_OUTCOMES = (
    RedriveOutcome.SENT.value,
    RedriveOutcome.MOVED.value,
    RedriveOutcome.CONFIRMED.value,
    RedriveOutcome.RECURRED.value,
)

_IS_NEW = """
(row.message_id <> excluded.message_id OR row.quarantined_at < excluded.quarantined_at)
"""
# What was decided about this very quarantine, or a later one, stays decided; but not
# where it was a row of another database, which the outbox had before.
_NOTE = f"""
INSERT INTO outbox_set_aside_row AS row (outbox_id, row_id, message_id, poison_id,
    redrives, state, is_settled, quarantined_at, noted_at, writer_user,
    writer_application, writer_address)
SELECT %(outbox)s, one.row_id, one.message_id, one.poison, poison.redrives,
       'quarantined', true, one.quarantined_at, %(now)s, one.user, one.application,
       one.address
FROM unnest(%(row_ids)s::int8[], %(message_ids)s::text[], %(poisons)s::int8[],
            %(times)s::timestamptz[], %(users)s::text[], %(applications)s::text[],
            %(addresses)s::text[])
     AS one(row_id, message_id, poison, quarantined_at, "user", application, address)
JOIN poison_poison poison ON poison.id = one.poison
ON CONFLICT (outbox_id, row_id) DO UPDATE
SET poison_id = excluded.poison_id,
    redrives = CASE WHEN row.poison_id = excluded.poison_id AND NOT {_IS_NEW}
                    THEN row.redrives ELSE excluded.redrives END,
    writer_user = excluded.writer_user,
    writer_application = excluded.writer_application,
    writer_address = excluded.writer_address,
    state = CASE WHEN {_IS_NEW} THEN 'quarantined' ELSE row.state END,
    is_settled = row.is_settled OR {_IS_NEW},
    noted_at = CASE WHEN {_IS_NEW} THEN excluded.noted_at ELSE row.noted_at END,
    quarantined_at = CASE WHEN {_IS_NEW} THEN excluded.quarantined_at
                          ELSE row.quarantined_at END,
    message_id = excluded.message_id
RETURNING row.row_id, row.poison_id, row.state
"""  # noqa: S608 - made of constants


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedRow:
    """A quarantined row, and the poison that its capture made or found."""

    row: QuarantinedRow
    poison: int


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """A row as it was read, and the state that it should have."""

    row: QuarantineRecord
    target: QuarantineState


@transaction.atomic
def note(*, outbox: Outbox, rows: Sequence[CapturedRow], now: datetime) -> None:
    """Link quarantined outbox rows to the messages that were captured from them.

    The outbox may have been removed: then nothing is stored. Where a person decided
    about a row before its message was here, that is carried out on the message. A
    message whose row was released is open again.
    """
    if not rows or not Outbox.objects.filter(pk=outbox.pk).exists():
        return
    by_id = {each.row.row_id: each for each in rows}
    with connection.cursor() as cursor:
        in_order = [by_id[row_id] for row_id in sorted(by_id)]
        cursor.execute(_NOTE, {**_columns(outbox, in_order), "now": now})
        noted = cursor.fetchall()
    unsent = (QuarantineState.QUARANTINED, QuarantineState.DROPPED)
    again = [poison for _, poison, state in noted if state in unsent]
    drop_restore_and_give_back.take_back(
        poisons=again, source=outbox.topic.name, now=now
    )
    for row_id, poison, state in noted:
        if state == QuarantineState.RELEASED:
            _give_back(outbox, row_id, poison, now=now)
        elif state == QuarantineState.DROPPED:
            drop_restore_and_give_back.drop(poisons=[poison], now=now)
    note_flood(outbox_id=outbox.pk, now=now)


def decide(
    *,
    outbox: Outbox,
    row_id: int,
    quarantine: Quarantine,
    state: QuarantineState,
    now: datetime,
) -> None:
    """Record a person's decision about a quarantined row, and decide its message.

    Raises Refused where triage was first. Call it inside a transaction.
    """
    rows = QuarantineRecord.objects.select_for_update().filter(
        outbox=outbox, row_id=row_id
    )
    row = rows.first()
    if row is not None and row.poison_id is not None and row.state not in FINAL:
        lock([row.poison_id])
        _refuse_unless_open(row_id, row.poison_id)
        if state is QuarantineState.RELEASED:
            _give_back(outbox, row_id, row.poison_id, now=now)
        else:
            drop_restore_and_give_back.drop(poisons=[row.poison_id], now=now)
    QuarantineRecord.objects.update_or_create(
        outbox=outbox,
        row_id=row_id,
        defaults={
            "state": state.value,
            "is_settled": False,
            "quarantined_at": quarantine.quarantined_at,
            "message_id": storable(quarantine.message_id),
            "noted_at": now,
        },
    )


def rows_awaiting_writeback() -> QuerySet[QuarantineRecord]:
    """Select our records of quarantined outbox rows that are not as was decided.

    Each has the decided state as its `target`: the row in the producer's database is
    still to be set to it.
    """
    sends = Redrive.objects.filter(
        poison=OuterRef("poison"), n__gt=OuterRef("redrives"), outcome__in=SENT_OUTCOMES
    )
    rows = QuarantineRecord.objects.annotate(
        target=Case(
            When(state__in=FINAL, then=F("state")),
            When(
                Q(poison__redrives__gt=F("redrives")) & Exists(sends),
                then=Value(QuarantineState.SENT.value),
            ),
            When(
                poison__state=PoisonState.OPEN.value,
                then=Value(QuarantineState.QUARANTINED.value),
            ),
            When(
                poison__state=PoisonState.DROPPED.value,
                then=Value(QuarantineState.DROPPED.value),
            ),
            default=F("state"),
        )
    )
    return rows.filter(Q(is_settled=False) | ~Q(target=F("state")))


def first_unsettled(
    outbox: Outbox, *, passed_by: Sequence[int], most: int
) -> list[int]:
    """List keys of an outbox's first quarantined rows that the writeback has to settle.

    They are not yet as was decided. It reads all records of quarantined rows,
    however few it lists.
    """
    rows = rows_awaiting_writeback().filter(outbox=outbox).exclude(pk__in=passed_by)
    return list(rows.order_by("pk").values_list("pk", flat=True)[:most])


def unsettled_rows(keys: Sequence[int]) -> list[DecidedRow]:
    """Return our records of quarantined outbox rows with these keys, still unsettled.

    Each comes with the decided state that the row does not have yet.
    """
    return [
        DecidedRow(row, QuarantineState(row.target))  # type: ignore[attr-defined]
        for row in rows_awaiting_writeback().filter(pk__in=keys).order_by("pk")
    ]


# As `note` does, it locks rows by their numbers.
_STORE = """
WITH one AS (
    SELECT * FROM unnest(%(keys)s::int8[], %(before)s::text[], %(settled)s::bool[],
                         %(times)s::timestamptz[], %(after)s::text[])
        AS one(id, state, is_settled, quarantined_at, becomes)
), locked AS (
    SELECT id FROM outbox_set_aside_row WHERE id = ANY(%(keys)s)
    ORDER BY outbox_id, row_id FOR UPDATE
)
UPDATE outbox_set_aside_row AS row SET state = one.becomes, is_settled = true
FROM one JOIN locked USING (id)
WHERE row.id = one.id AND row.state = one.state
  AND row.is_settled = one.is_settled AND row.quarantined_at = one.quarantined_at
"""


def store_all(
    *,
    outbox: Outbox,
    states: Sequence[tuple[DecidedRow, QuarantineState]],
    now: datetime,
) -> None:
    """Store in our Postgres what has become of rows in a producer's outbox.

    As `store` does, for many rows.
    """
    as_decided = [each for each in states if not _was_sent_all_the_same(*each)]
    rows = [decided.row for decided, _ in as_decided]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            _STORE,
            {
                "keys": [row.pk for row in rows],
                "before": [row.state for row in rows],
                "settled": [row.is_settled for row in rows],
                "times": [row.quarantined_at for row in rows],
                "after": [state.value for _, state in as_decided],
            },
        )
    for decided, state in states:
        if _was_sent_all_the_same(decided, state):
            store(outbox=outbox, decided=decided, state=state, now=now)


@transaction.atomic
def store(
    *, outbox: Outbox, decided: DecidedRow, state: QuarantineState, now: datetime
) -> None:
    """Store in our Postgres what has become of one row in a producer's outbox.

    Not if it was decided again. Where the row was sent all the same, its message is not
    to be sent once more.
    """
    row = decided.row
    as_read = QuarantineRecord.objects.filter(
        pk=row.pk,
        state=row.state,
        is_settled=row.is_settled,
        quarantined_at=row.quarantined_at,
    )
    is_stored = as_read.update(state=state.value, is_settled=True)
    if is_stored and _was_sent_all_the_same(decided, state) and row.poison_id:
        _give_back(outbox, row.row_id, row.poison_id, now=now)


def _was_sent_all_the_same(decided: DecidedRow, state: QuarantineState) -> bool:
    return state is QuarantineState.SENT and decided.target is not QuarantineState.SENT


def note_flood(*, outbox_id: int, now: datetime) -> None:
    """Store which writer had most rows quarantined in the last ten minutes.

    The number of these rows is stored with it.
    """
    rows = QuarantineRecord.objects.filter(
        outbox=outbox_id, noted_at__gt=now - FLOOD_TIME
    )
    writers = rows.values_list(*WRITER)
    first = writers.annotate(rows=Count("pk")).order_by("-rows", *WRITER).first()
    *writer, count = first or ("", "", "", 0)
    OutboxActivity.objects.filter(outbox=outbox_id).update(
        flood_rows=count, flood_writer=_words_of(*writer) if count else ""
    )


def note_ends_of_floods(*, now: datetime) -> None:
    """Count outboxes' floods of quarantined rows again: some may have ended."""
    flooded = OutboxActivity.objects.filter(flood_rows__gt=0)
    for outbox_id in flooded.values_list("outbox", flat=True):
        note_flood(outbox_id=outbox_id, now=now)


def prune_settled(*, now: datetime) -> None:
    """Delete our records of quarantined outbox rows that were sent or released.

    Those are deleted a day after they were settled: no report or decision needs them.
    """
    rows = QuarantineRecord.objects.filter(state__in=FINAL, is_settled=True)
    rows.filter(noted_at__lt=now - FINAL_FOR).delete()


def _words_of(user: str, application: str, address: str) -> str:
    """Describe the writer of a quarantined row: user, application, address."""
    if not (user or application or address):
        return "a writer that no trigger noted"
    return (
        f"user {user}, application {application or '(no name)'}, address"
        f" {address or '(local)'}"
    )


def _refuse_unless_open(row_id: int, poison: int) -> None:
    """Raise Refused where triage has acted on the message of a row, or is about to."""
    hold = Hold.objects.filter(poison=poison).first()
    if hold is not None:
        raise Refused(
            f"Operation {hold.operation} has the message {poison} of row {row_id}:"
            " cancel it, or wait for its end."
        )
    state = Poison.objects.filter(pk=poison).values_list("state", flat=True).first()
    if state in {None, PoisonState.OPEN.value}:  # it may be deleted by its retention
        return
    if state == PoisonState.DROPPED.value:
        raise Refused(
            f"The message {poison} of row {row_id} was dropped: restore it first."
        )
    raise Refused(
        f"The message {poison} of row {row_id} was requeued: the row is marked as sent"
        " within seconds."
    )


def _give_back(outbox: Outbox, row_id: int, poison: int, *, now: datetime) -> None:
    detail = f"row {row_id} is sent by the outbox {outbox.name}"
    source = outbox.topic.name
    drop_restore_and_give_back.give_back(
        poisons=[poison], source=source, detail=detail, now=now
    )


def _columns(outbox: Outbox, rows: Sequence[CapturedRow]) -> Mapping[str, Any]:
    writers = [each.row.writer for each in rows]
    return {
        "outbox": outbox.pk,
        "row_ids": [each.row.row_id for each in rows],
        "message_ids": [storable(each.row.message_id) for each in rows],
        "poisons": [each.poison for each in rows],
        "times": [each.row.quarantined_at for each in rows],
        "users": [storable(each.user)[:WRITER_LIMIT] for each in writers],
        "applications": [storable(each.application)[:WRITER_LIMIT] for each in writers],
        "addresses": [storable(each.address)[:WRITER_LIMIT] for each in writers],
    }
