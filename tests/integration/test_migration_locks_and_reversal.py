"""Migrations get their locks while others are at work on the tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from redis import Redis

from apps.brokers.models import Topic
from apps.core.errors import Invalid
from apps.core.schema_changes import LOCK_TIMEOUT, migrate
from apps.poison.models import Hold
from apps.redelivery.models import EndpointActivity
from apps.reports.models import Day, EndpointDay, Run
from apps.team.rights import Principal
from tests.failure_report_builders import poisons
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint
from tests.lane_crash_simulation import drain_all
from tests.published_reports import endpoint_day, publish
from tests.triage_operation_runner import confirm, preview
from tests.waiting import stall_free_timer, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

BACKUP_SECONDS, LONGEST_WAIT = 8.0, 5.0
NEWEST, BEFORE = (), ("triage", "0005")


@contextmanager
def backed_up() -> Iterator[None]:
    """Read a table in a transaction that lasts long, as a back-up does."""
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("LOCK TABLE triage_operation IN ACCESS SHARE MODE")
        end = threading.Timer(BACKUP_SECONDS, other.rollback)
        end.start()
        yield
        end.join()


def longest_wait_of_a_reader(until: threading.Event) -> float:
    longest = 0.0
    parameters = connection.get_connection_params()
    with (
        stall_free_timer() as timer,
        psycopg.connect(**parameters, autocommit=True) as reader,
    ):
        while not until.wait(0.05):
            began = timer()
            reader.execute("SELECT FROM triage_operation LIMIT 1")
            longest = max(longest, timer() - began)
    return longest


@pytest.mark.parametrize(
    ("first", "then"),
    [(BEFORE, NEWEST), (NEWEST, BEFORE)],
    ids=["upgrade", "way back"],
)
def test_others_wait_briefly_for_a_migration_that_waits_for_a_backup(
    first: Sequence[str], then: Sequence[str]
) -> None:
    end = threading.Event()
    try:
        migrate(*first)
        with ThreadPoolExecutor(1) as threads, backed_up():
            waits = threads.submit(longest_wait_of_a_reader, end)
            try:
                migrate(*then)
            finally:
                end.set()
        assert waits.result() < LONGEST_WAIT
    finally:
        migrate()


def test_a_migration_waits_for_a_lock_until_postgres_has_ended_an_autovacuum() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(LOCK_TIMEOUT)
        cursor.execute(
            "SELECT current_setting('lock_timeout')::interval"
            " > current_setting('deadlock_timeout')::interval"
        )
        assert cursor.fetchone() == (True,)


def test_a_migration_that_asks_in_vain_for_a_lock_is_tried_again() -> None:
    migrate("triage", "0005")
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("LOCK TABLE triage_operation IN ACCESS EXCLUSIVE MODE")
        other_ends = threading.Timer(3, other.rollback)
        started = time.monotonic()
        other_ends.start()
        migrate()
        waited = time.monotonic() - started
        other_ends.join()

    assert waited > 3
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(
            cursor, "triage_operation"
        )
    assert "breakdown" in {column.name for column in columns}


WAITING = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'poison_poison'::regclass
"""


def test_a_writer_does_not_wait_for_a_migration_that_waits_for_it() -> None:
    parameters = connection.get_connection_params()
    try:
        migrate("poison", "0019")
        with ThreadPoolExecutor(1) as thread, psycopg.connect(**parameters) as writer:
            writer.execute("SELECT FROM poison_poison FOR UPDATE")
            upgrade = thread.submit(in_thread, migrate)
            wait_until(lambda: writer.execute(WAITING).fetchone() == (1,))
            writer.execute("SET LOCAL lock_timeout = '300ms'")
            writer.execute("DELETE FROM poison_hold WHERE false")
            writer.commit()
            upgrade.result()
    finally:
        migrate()


def in_thread(work: Callable[[], None]) -> None:
    try:
        work()
    finally:
        connection.close()


FOREIGN_KEYS = """
SELECT conrelid::regclass::text, pg_get_constraintdef(oid), convalidated
FROM pg_constraint WHERE contype = 'f'
  AND confrelid IN ('poison_poison'::regclass, 'triage_operation'::regclass)
  AND conrelid IN ('triage_selected_item'::regclass, 'poison_hold'::regclass,
                   'poison_redrive'::regclass)
ORDER BY 1, 2
"""
TO_POISON, TO_OPERATION = (
    f"FOREIGN KEY ({column}) REFERENCES {table}(id) DEFERRABLE INITIALLY DEFERRED"
    for column, table in [
        ("poison_id", "poison_poison"),
        ("operation_id", "triage_operation"),
    ]
)


def foreign_keys() -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(FOREIGN_KEYS)
        return list(cursor.fetchall())


def test_the_way_back_brings_foreign_keys_back_and_checks_what_is_there(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    confirm(operator, preview(operator, now), now)
    orphan = Hold(poison_id=10**9, operation=9, item=0, n=1, topic_id=orders.pk)
    orphan.save(force_insert=True)
    try:
        migrate("triage", "0008")
        with pytest.raises(IntegrityError, match="violates foreign key"):
            migrate("poison", "0019")
        orphan.delete()
        migrate("poison", "0019")
        assert foreign_keys() == [
            ("poison_hold", TO_POISON, True),
            ("poison_redrive", TO_POISON, True),
            ("triage_selected_item", TO_OPERATION, True),
            ("triage_selected_item", TO_POISON, True),
        ]
    finally:
        Hold.objects.filter(pk=orphan.pk).delete()
        migrate()
    assert foreign_keys() == []


def test_the_way_back_takes_the_lock_queues_and_the_fences_of_senders_along() -> None:
    activity = EndpointActivity.objects.filter(endpoint=endpoint())
    activity.update(fence=7)
    try:
        migrate("redelivery", "0001")
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('poisonguard_lock_tickets')")
            assert cursor.fetchone() == (None,)
    finally:
        migrate()
    # Tickets begin at 1 again, and none may be below the fence.
    assert activity.get().fence == 0


def test_after_the_way_back_no_message_of_a_topic_of_requests_is_a_dead_letter(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    Topic.objects.filter(pk=orders.pk).update(
        dead_letter_queue="orders", request_endpoints=["stock-*"]
    )
    stream.xadd("orders", {"body": b"a request"})
    try:
        migrate("brokers", "0007")
    finally:
        migrate()

    orders.refresh_from_db()
    assert (orders.request_endpoints, orders.dead_letter_queue) == ([], "orders")
    with pytest.raises(Invalid):
        drain_all(orders, now)
    assert stream.xlen("orders") == 1


def test_a_topic_of_requests_that_reads_another_queue_is_refused(
    orders: Topic,
) -> None:
    with pytest.raises(IntegrityError, match="brokers_topic_of_requests_reads_itself"):
        Topic.objects.filter(pk=orders.pk).update(request_endpoints=["stock-*"])


def test_the_release_before_replaces_days_without_knowing_their_endpoints(
    now: datetime,
) -> None:
    day = now.date()
    publish(day)
    endpoint_day(day)
    with transaction.atomic(), connection.cursor() as cursor:
        # As it does to make a day again.
        cursor.execute("DELETE FROM reports_day WHERE day = %s", [day])
        cursor.execute(
            "INSERT INTO reports_day (day, run_id, rows_in, late_rows)"
            " VALUES (%s, %s, 0, 0)",
            [day, Run.objects.get().pk],
        )

    assert Day.objects.get().counts_endpoints is False


def test_the_way_back_takes_the_days_of_endpoints_along(now: datetime) -> None:
    day = now.date()
    publish(day)
    endpoint_day(day)
    try:
        migrate("reports", "0001")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT to_regclass('reports_endpoint_day'),"
                " to_regclass('reports_staged_endpoint')"
            )
            assert cursor.fetchone() == (None, None)
    finally:
        migrate()
    assert Day.objects.get().counts_endpoints is False
    assert not EndpointDay.objects.exists()
