"""The rows of a message that failed for the first time, with their final values.

Any failure of a message that is known has the same columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import NamedTuple

from apps.capture.intake.occurrence import MOST, Occurrence
from apps.core.text_cleaning import one_line
from apps.poison.states import PoisonState

# The columns of each table, with their types.
POISON_COLUMNS = {
    "id": "int8",
    "identity": "bytea",
    "reuse": "int2",
    "topic_id": "int8",
    "consumer_group": "text",
    "bookmark": "bytea",
    "message_id": "text",
    "problem_id": "int8",
    "state": "text",
    "cause": "text",
    "error_type": "text",
    "error_message": "text",
    "size": "int8",
    "digest": "bytea",
    "failures": "int4",
    "attempts": "int4",
    "crashes": "int4",
    "redrives": "int4",
    "recurrences": "int4",
    "first_failed_at": "timestamptz",
    "last_failed_at": "timestamptz",
    "captured_at": "timestamptz",
}

BODY_COLUMNS = {
    "day": "date",
    "poison_id": "int8",
    "content": "bytea",
    "headers": "bytea[]",
    "content_type": "text",
}

FAILURE_COLUMNS = {
    "id": "int8",
    "day": "date",
    "poison_id": "int8",
    "problem_id": "int8",
    "report_id": "uuid",
    "is_first": "bool",
    "bookmark": "bytea",
    "cause": "text",
    "error_type": "text",
    "error_message": "text",
    "traceback": "text",
    "client_name": "text",
    "sub_id": "text",
    "host": "text",
    "handler_version": "text",
    "attempts": "int4",
    "failures": "int4",
    "crashes": "int4",
    "dequeue_count": "int4",
    "dequeue_count_source": "text",
    "first_failed_at": "timestamptz",
    "failed_at": "timestamptz",
    "failed_at_claimed": "timestamptz",
    "captured_at": "timestamptz",
}

DELIVERY_COLUMNS = {
    "report_id": "uuid",
    "topic_id": "int8",
    "digest": "bytea",
    "captured_at": "timestamptz",
}


_OPEN = PoisonState.OPEN.value


class NewMessage(NamedTuple):
    """The first failure of a message: its place in the batch, and the ids it gets."""

    place: int
    poison: int
    problem: int
    failure: int
    occurrence: Occurrence


def poison_row(new: NewMessage, now: datetime) -> Sequence[object]:
    """Return the column values of a poison that has failed once."""
    o = new.occurrence
    return (
        new.poison,
        o.identity,
        0,
        o.topic_id,
        o.consumer_group,
        o.bookmark,
        o.message_id,
        new.problem,
        _OPEN,
        o.cause,
        o.error_type,
        one_line(o.error_message),
        len(o.body),
        o.digest,
        1,
        min(o.attempts, MOST),
        min(o.crashes, MOST),
        0,
        0,
        o.first_failed_at,
        o.failed_at,
        now,
    )


def body_row(new: NewMessage, day: date) -> Sequence[object]:
    """Return the column values of a message's body."""
    o = new.occurrence
    headers = [part for header in o.headers for part in header]
    return day, new.poison, o.body, headers, o.content_type


def failure_row(new: NewMessage, now: datetime, day: date) -> Sequence[object]:
    """Return the column values of the first failure of a poison."""
    o = new.occurrence
    return (
        new.failure,
        day,
        new.poison,
        new.problem,
        o.report_id,
        True,
        o.bookmark,
        o.cause,
        o.error_type,
        o.error_message,
        o.traceback,
        o.client_name,
        o.sub_id,
        o.host,
        o.handler_version,
        o.attempts,
        o.failures,
        o.crashes,
        o.dequeue_count,
        o.dequeue_count_source,
        o.first_failed_at,
        o.failed_at,
        o.failed_at_claimed,
        now,
    )


def delivery_row(new: NewMessage, now: datetime) -> Sequence[object]:
    """Return a row of `capture_delivery`: it identifies an unnamed dead letter."""
    o = new.occurrence
    return o.report_id, o.topic_id, o.delivery, now


def needs_merge(occurrence: Occurrence) -> bool:
    """Tell whether a failure has effects on more than its own message."""
    return (
        occurrence.redrive is not None
        or occurrence.suspected
        or (occurrence.replays and occurrence.consumer_group != "")
    )
