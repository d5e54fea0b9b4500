"""Settling rows of an outbox that triage decided about, against two bare UPDATEs.

All messages of the quarantined rows are dropped, as one operation leaves them, then
restored, and so on; in the end all are requeued. The baseline changes the same rows by
one UPDATE in the producer's database and one in ours: it looks nothing up, and compares
nothing.

`--rows N` is how many rows there are (2,000). The number of rows of a second, far
larger run should not change the ratio. The processor time is that of the settling
process alone; `most memory` is the most that it had.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import Any
from urllib.parse import urlsplit

import psycopg

from benchmarks._benchmark_harness import compare, product
from poisonguard.outbox.postgres_schema import schema

PUT = """
INSERT INTO poisonguard_outbox (producer, message_id, topic, key, body, quarantined_at,
    quarantine_cause, quarantine_reason, reported_at)
SELECT 'shop', 'm-' || n, 'orders', '', convert_to(repeat('x', 500), 'UTF8'),
    now() - interval '1 hour', 'rejected', 'a benchmark', now()
FROM generate_series(1, %s) AS n
"""
PROBLEM = """
INSERT INTO poison_problem (topic_id, consumer_group, fingerprint, version, title,
    summary, inputs, first_seen, last_seen)
SELECT id, '', sha256('a'), 1, 'Rejected', 'a benchmark', '{}', now(), now()
FROM brokers_topic LIMIT 1 RETURNING id
"""
POISONS = """
INSERT INTO poison_poison (identity, reuse, topic_id, consumer_group, bookmark,
    problem_id, state, cause, error_type, error_message, size, digest, failures,
    attempts, crashes, redrives, recurrences, first_failed_at, last_failed_at,
    captured_at)
SELECT sha256(n::text::bytea), 0, topic_id, '', convert_to(n::text, 'UTF8'), id, 'open',
    'rejected', 'Rejected', 'a benchmark', 500, sha256(n::text::bytea), 1, 1, 0, 0, 0,
    now(), now(), now()
FROM poison_problem, generate_series(1, %s) AS n
"""
SET_ASIDE = """
INSERT INTO outbox_set_aside_row (outbox_id, row_id, message_id, poison_id, redrives,
    state, is_settled, quarantined_at, noted_at, writer_user, writer_application,
    writer_address)
SELECT %s, n, 'm-' || n, poison.id, 0, 'quarantined', true, now() - interval '1 hour',
    now() - interval '1 hour', 'shop', 'shop', ''
FROM (SELECT id, convert_from(bookmark, 'UTF8')::int8 AS n FROM poison_poison) poison
"""
DECIDE = {
    True: "UPDATE poison_poison SET state = 'dropped', dropped_at = now()",
    False: "UPDATE poison_poison SET state = 'open', dropped_at = NULL",
}
REQUEUE = """
WITH one AS (
    UPDATE poison_poison SET state = 'redriven', dropped_at = NULL, redrives = 1,
        sent_at = now()
    RETURNING id, topic_id
)
INSERT INTO poison_redrive (id, poison_id, n, topic_id, queue, outcome, detail,
    bookmark, epoch, copies, claimed_at, sent_at)
SELECT gen_random_uuid(), id, 1, topic_id, '', 'sent', '', '', 1, 1, now(), now()
FROM one
"""
BARE = {
    True: "UPDATE poisonguard_outbox SET dropped_at = now()",
    False: "UPDATE poisonguard_outbox SET dropped_at = NULL",
}
BARE_HERE = "UPDATE outbox_set_aside_row SET is_settled = true"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000)
    rows = parser.parse_args().rows
    with product():
        url = urlsplit(os.environ["DATABASE_URL"])
        with psycopg.connect(url.geturl(), autocommit=True) as server:
            server.execute("CREATE DATABASE producer")
        producer_url = url._replace(path="/producer").geturl()
        with psycopg.connect(producer_url, autocommit=True) as producer:
            prepare(producer, producer_url, rows)
            settle_and_compare(producer, rows)


def prepare(producer: psycopg.Connection[Any], url: str, rows: int) -> None:
    """Make quarantined and reported outbox rows, and their poisons in Poisonweb.

    The rows are in the producer's database, and noted in ours. Register the outbox.
    """
    from django.db import connection

    from apps.brokers.models import Broker
    from apps.core import clock
    from apps.core.actor import Actor
    from apps.outbox.models import Outbox
    from apps.outbox.outbox_settings_dataclass import OutboxSettings
    from apps.outbox.services.outbox_registration import add_outbox
    from apps.team.rights import Principal, Scope

    producer.execute(schema().encode())
    producer.execute(PUT, [rows])
    Broker.objects.create(
        name="events", kind="redis_streams", url=os.environ["POISONWEB_REDIS_URL"]
    )
    add_outbox(
        name="shop",
        settings=OutboxSettings(url=f"{url}?sslmode=disable", broker="events"),
        principal=Principal(actor=Actor.system("bench"), scopes=frozenset(Scope)),
        now=clock.now(),
    )
    with connection.cursor() as cursor:
        cursor.execute(PROBLEM)
        cursor.execute(POISONS, [rows])
        cursor.execute(SET_ASIDE, [Outbox.objects.get().pk])
        cursor.execute("ANALYZE")
    producer.execute("ANALYZE")


def settle_and_compare(producer: psycopg.Connection[Any], rows: int) -> None:
    from django.db import connection

    from apps.core import clock
    from apps.outbox.models import OutboxError, QuarantineRecord
    from apps.outbox.sweeping.decision_writeback_thread import DecisionWriteback

    settling, is_dropped = DecisionWriteback(clock=clock.now), False

    def decide() -> None:
        nonlocal is_dropped
        is_dropped = not is_dropped
        with connection.cursor() as cursor:
            cursor.execute(DECIDE[is_dropped])

    def settle(state: str) -> None:
        settling.settle_all()
        assert QuarantineRecord.objects.filter(state=state).count() == rows
        assert not OutboxError.objects.exists()

    def settle_and_print(state: str) -> None:
        began, used = time.perf_counter(), time.process_time()
        settle(state)
        print(
            f"{rows:,} rows {state} in {time.perf_counter() - began:.1f} s, processor"
            f" time {time.process_time() - used:.1f} s, most memory"
            f" {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB",
            flush=True,
        )

    def update() -> None:
        producer.execute(BARE[is_dropped])
        with connection.cursor() as cursor:
            cursor.execute(BARE_HERE)

    decide()
    settle_and_print("dropped")

    def decide_and_settle() -> None:
        decide()
        settle("dropped" if is_dropped else "quarantined")

    def decide_and_update() -> None:
        # Decided twice, as it was before, so that both do so.
        decide()
        decide()
        update()

    compare(
        "rows decided and settled",
        number=rows,
        ours=decide_and_settle,
        baseline=decide_and_update,
        named="decided and updated",
    )
    with connection.cursor() as cursor:
        cursor.execute(REQUEUE)
    settle_and_print("sent")


if __name__ == "__main__":
    main()
