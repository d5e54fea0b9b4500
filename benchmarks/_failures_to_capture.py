"""Failures to capture, as guards report them, and rows to COPY.

Import it when Django is set up. The tree of an earlier commit runs it, too.
"""

from __future__ import annotations

import os
import traceback
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from itertools import count
from typing import Any

from django.db import connection, transaction

from apps.brokers.models import Topic
from poisonguard.contract import Cause, FailureReport, Raised

try:
    from apps.brokers.services.topics_and_routing_publisher import topics_named
    from apps.capture.intake import services
    from apps.capture.intake.occurrence import from_report
except ImportError:  # where 9a46585 had them
    from apps.capture.occurrence import (  # type: ignore[import-not-found,no-redef]
        from_report,
    )

    from apps.brokers.services import topics_named  # type: ignore[attr-defined,no-redef]
    from apps.capture import services  # type: ignore[attr-defined,no-redef]

BODY_SIZE = 900
PROBLEMS = 20
_numbers = count()


def topic() -> Topic:
    """Return the topic of all failure reports of the benchmark."""
    return topics_named(names=["orders"])["orders"]


def reports(number: int) -> list[FailureReport]:
    """Make failure reports of so many messages that first fail, of twenty problems."""
    now = datetime.now(UTC)
    return [_report(next(_numbers), now) for _ in range(number)]


def capture(batch: Sequence[FailureReport], topic: Topic) -> None:
    """Store a benchmark's failure reports in one transaction, as a request does."""
    now = datetime.now(UTC)
    occurrences = [from_report(report, topic=topic, now=now) for report in batch]
    services.write(occurrences=occurrences, now=now)


def _report(place: int, now: datetime) -> FailureReport:
    """Make a failure report whose traceback ends with its message, as in Python."""
    raised = _raised(place)
    return FailureReport(
        report_id=uuid.uuid4(),
        topic="orders",
        consumer_group="billing",
        client_name="billing-1",
        bookmark=f"{place}-0",
        body=os.urandom(BODY_SIZE),
        headers=((b"trace", b"%d" % place),),
        cause=Cause.EXHAUSTED,
        attempts=3,
        failures=3,
        crashes=0,
        first_failed_at=now,
        failed_at=now,
        exception=raised,
    )


def _raised(place: int) -> Raised:
    """Fail a few frames deep; return the exception as a guard reports it."""
    try:
        _handle(place, depth=4)
    except ValueError as error:
        return Raised(
            type=f"Error{place % PROBLEMS}",
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
        )
    raise AssertionError("unreachable")


def _handle(place: int, *, depth: int) -> None:
    if depth:
        _handle(place, depth=depth - 1)
    raise ValueError(f"order {place} is too old")


# The columns of each table that a failure of a guard fills, with their types.
_TABLES = {
    "poison_poison": (
        "id int8, identity bytea, reuse int2, topic_id int8, consumer_group text,"
        " bookmark bytea, problem_id int8, state text, cause text, error_type text,"
        " error_message text, size int8, digest bytea, failures int4, attempts int4,"
        " crashes int4, redrives int4, recurrences int4, first_failed_at timestamptz,"
        " last_failed_at timestamptz, captured_at timestamptz"
    ),
    "poison_body": "day date, poison_id int8, content bytea, headers bytea[]",
    "poison_failure": (
        "day date, poison_id int8, problem_id int8, report_id uuid, is_first bool,"
        " bookmark bytea, cause text, error_type text, error_message text,"
        " traceback text, client_name text, attempts int4, failures int4,"
        " crashes int4, first_failed_at timestamptz, failed_at timestamptz,"
        " captured_at timestamptz"
    ),
}
Rows = dict[str, list[tuple[Any, ...]]]


def rows(number: int, topic: Topic) -> Rows:
    """Make the rows that COPY writes for so many failures; return lists by table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM poison_problem ORDER BY id")
        problems = [pk for (pk,) in cursor.fetchall()]
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence('poison_poison', 'id'))"
            " FROM generate_series(1, %s)",
            [number],
        )
        ids = [pk for (pk,) in cursor.fetchall()]
    now = datetime.now(UTC)
    batch: Rows = {table: [] for table in _TABLES}
    for pk, report in zip(ids, reports(number), strict=True):
        problem = problems[pk % len(problems)]
        for table, row in _rows_of(pk, report, topic.pk, problem, now):
            batch[table].append(row)
    return batch


def _rows_of(
    pk: int, report: FailureReport, topic: int, problem: int, now: datetime
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield tables' names with the rows that the bare COPY writes for a failure."""
    raised = report.exception
    assert raised is not None
    bookmark, day = report.bookmark.encode(), date.today()  # noqa: DTZ011 - a partition
    identity = uuid.uuid4().bytes * 2
    yield (
        "poison_poison",
        (
            *(pk, identity, 0, topic, report.consumer_group, bookmark, problem),
            *("open", report.cause.value, raised.type, raised.message),
            *(len(report.body), identity, 1, 3, 0, 0, 0, now, now, now),
        ),
    )
    headers = [part for header in report.headers for part in header]
    yield "poison_body", (day, pk, report.body, headers)
    yield (
        "poison_failure",
        (
            *(day, pk, problem, report.report_id, True, bookmark, report.cause.value),
            *(raised.type, raised.message, raised.traceback, report.client_name),
            *(3, 3, 0, now, now, now),
        ),
    )


@transaction.atomic
def copy(batch: Rows) -> None:
    """Write rows of failures by COPY into their tables, in one transaction."""
    with connection.cursor() as cursor:
        for table, columns in _TABLES.items():
            names, types = zip(*map(str.split, columns.split(", ")), strict=True)
            statement = f"COPY {table} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)"
            with cursor.copy(statement) as into:
                into.set_types(types)
                for row in batch[table]:
                    into.write_row(row)
