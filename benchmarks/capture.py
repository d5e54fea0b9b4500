"""Capture of failures against a bare COPY into a table with four indexes.

Target: at least 0.60 of the COPY, and at least 4 times Django's bulk_create; a replay
of pure duplicates is not slower than the first insertion.
"""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from itertools import count

from benchmarks._bench import compare, product, seconds

NUMBER = 5_000
BATCH = 500


def main() -> None:
    from django.db import connection

    from apps.brokers.services.topics import topics_named
    from apps.capture.intake import services
    from apps.capture.intake.occurrence import from_report
    from apps.poison.models import Problem
    from poisonguard.contract import Cause, FailureReport, Raised

    now = datetime.now(UTC)
    topic = topics_named(names=["orders"])["orders"]
    numbers = count()

    def report() -> FailureReport:
        place = next(numbers)
        return FailureReport(
            report_id=uuid.uuid4(),
            topic="orders",
            consumer_group="billing",
            client_name="billing-1",
            bookmark=f"{place}-0",
            body=os.urandom(900),
            headers=((b"trace", b"%d" % place),),
            cause=Cause.EXHAUSTED,
            attempts=3,
            failures=3,
            crashes=0,
            first_failed_at=now,
            failed_at=now,
            exception=Raised(
                type=f"Error{place % 20}", message=f"order {place} is too old"
            ),
        )

    def capture(reports: list[FailureReport]) -> None:
        for start in range(0, len(reports), BATCH):
            batch = reports[start : start + BATCH]
            services.write(
                occurrences=[from_report(r, topic=topic, now=now) for r in batch],
                now=now,
            )

    def new_reports() -> list[FailureReport]:
        return [report() for _ in range(NUMBER)]

    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE bare (id bigserial PRIMARY KEY, identity bytea UNIQUE,"
            " topic bigint, failed_at timestamptz, body bytea, headers bytea,"
            " note text)"
        )
        cursor.execute("CREATE INDEX ON bare (topic, failed_at)")
        cursor.execute("CREATE INDEX ON bare (failed_at)")

    def copy(reports: list[FailureReport]) -> None:
        columns = "identity, topic, failed_at, body, headers, note"
        statement = f"COPY bare ({columns}) FROM STDIN (FORMAT BINARY)"
        with connection.cursor() as cursor, cursor.copy(statement) as into:
            into.set_types(["bytea", "int8", "timestamptz", "bytea", "bytea", "text"])
            for r in reports:
                row = (r.report_id.bytes, 1, now, r.body, b"x" * 100, "x" * 200)
                into.write_row(row)

    def bulk_create(reports: list[FailureReport]) -> None:
        Problem.objects.bulk_create(
            [
                Problem(
                    topic=topic,
                    consumer_group="x",
                    fingerprint=r.report_id.bytes,
                    version=1,
                    title="x",
                    summary="x" * 900,
                    inputs=[],
                    first_seen=now,
                    last_seen=now,
                )
                for r in reports
            ],
            batch_size=BATCH,
        )

    # Create the reports beforehand: only the writing to Postgres is timed.
    batches = iter([new_reports() for _ in range(24)])
    compare(
        "capture",
        number=NUMBER,
        ours=lambda: capture(next(batches)),
        baseline=lambda: copy(next(batches)),
        named="COPY with 4 indexes",
    )
    batches = iter([new_reports() for _ in range(24)])
    compare(
        "capture",
        number=NUMBER,
        ours=lambda: capture(next(batches)),
        baseline=lambda: bulk_create(next(batches)),
        named="bulk_create",
    )
    once = new_reports()
    first = seconds(lambda: capture(once))
    again = seconds(lambda: capture(once))
    print(f"replay of duplicates: {first / again:.2f} x as fast as the first time")


if __name__ == "__main__":
    with product():
        main()
