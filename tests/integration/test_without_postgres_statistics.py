"""A new installation meets 20,000 messages: no statement depends on statistics.

Postgres knows what is in a table only after an ANALYZE. It comes by itself, but a
minute late: until then there are no statistics, or those of a table that was nearly
empty, in which nothing was held by any operation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections
from django.test import Client
from pytest_django.plugin import DjangoDbBlocker
from redis import Redis

from apps.brokers.models import Topic
from apps.capture.intake import services
from apps.core import clock
from apps.core.actor import Actor
from apps.poison.query_language import Query
from apps.team.rights import Principal, Role
from apps.team.services import create_user
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import preview_summaries
from apps.triage.services.running import SliceEnd
from tests.database_removal import drop_database
from tests.failure_report_builders import GUARD, capture, failure
from tests.statement_cpu_time import Statements, measured
from tests.template_database import ROOT
from tests.triage_operation_runner import (
    confirm,
    counts_of,
    preview,
    run,
    sent_messages,
)

pytestmark = pytest.mark.together

MESSAGES = 20_000
BATCH = 500
FEW = tuple(range(1, 1_001))
HALF = tuple(range(1, 10_001))
ANSWERS = 1_000
# Processor time of a statement: each time, and in all batches of an operation.
AT_ONCE, IN_ALL = 1.0, 3.0
EVERYTHING = Query.parse("topic:ord*")
PAGES = ("/", "/problems", "/messages", "/topics", "/operations", "/problems/1")
# When Postgres looks at the tables: never, or before the operations that count.
MOMENTS = ("never", "after the capture", "after the first preview", "after the first")

Result = TypeVar("Result")
Copy = Mapping[bytes, bytes]


@pytest.fixture(scope="module")
def captured(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, worker_id: str
) -> Iterator[tuple[str, Statements]]:
    """Give a database with 20,000 captured messages, and what capturing them took."""
    name = f"never_analysed_{worker_id}"
    with django_db_blocker.unblock(), database(name):
        migrate(name)
        with using(name):
            keep_unanalysed()
            with measured() as statements:
                capture_all(clock.now())
            keep_unanalysed()
            assert statistics() == 0
        yield name, statements


@pytest.fixture
def fresh_database(
    captured: tuple[str, Statements], django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Let Django use a copy of that database."""
    template, _ = captured
    copy = f"{template}_copy"
    with django_db_blocker.unblock(), database(copy, template=template), using(copy):
        yield


@contextmanager
def database(name: str, *, template: str = "template1") -> Iterator[None]:
    with connection.cursor() as cursor:
        drop_database(name, cursor)
        cursor.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        # What a second process does in parallel is not in the session's time.
        cursor.execute(f"ALTER DATABASE {name} SET max_parallel_workers_per_gather = 0")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            drop_database(name, cursor)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Let every connection of Django that is made from now on be to this database."""
    usual = connection.settings_dict["NAME"]
    connections.close_all()
    connection.settings_dict["NAME"] = name
    try:
        yield
    finally:
        connections.close_all()
        connection.settings_dict["NAME"] = usual


def migrate(name: str) -> None:
    there = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": there},
        check=True,
    )


def keep_unanalysed() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT format('ALTER TABLE %s SET (autovacuum_enabled = off)',"
            " oid::regclass) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        for (statement,) in cursor.fetchall():
            cursor.execute(statement)


def statistics() -> int:
    """Count the columns that Postgres knows, but for tables which migrations fill.

    Those have more than fifty rows before they can be kept from being analysed.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stats WHERE schemaname = 'public'"
            " AND tablename NOT IN ('auth_permission', 'django_migrations')"
        )
        return int(cursor.fetchone()[0])


def analyse() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def capture_all(now: datetime) -> None:
    for first in range(0, MESSAGES, BATCH):
        reports = [message(now, number) for number in range(first, first + BATCH)]
        capture(now, *reports)


def message(now: datetime, number: int, **changes: object) -> dict[str, object]:
    error = {"type": f"Error{number % 20}", "message": "broken", "traceback": ""}
    defaults = {"bookmark": f"{number}-0", "body": b"%d" % number, "exception": error}
    return failure(now, **{**defaults, **changes})


def quick(act: Callable[[], Result], *, in_all: float = IN_ALL) -> Result:
    """Do it, and see that no statement keeps a processor for longer than a second."""
    with measured() as statements:
        result = act()
    assert statements.slow(at_once=AT_ONCE, in_all=in_all) == {}
    return result


def carry_out(operation: Operation, now: datetime) -> dict[str, int]:
    while run(operation, now) is SliceEnd.AGAIN:
        pass
    return counts_of(operation)


def look_at_pages(browser: Client, *pages: str) -> None:
    for page in pages:
        assert browser.get(page).status_code == 200, page


def test_capture_of_the_first_messages_is_quick(
    captured: tuple[str, Statements],
) -> None:
    _, statements = captured

    assert statements.slow(at_once=AT_ONCE, in_all=IN_ALL) == {}
    assert any("FROM poison_alias WHERE identity" in text for text in statements.worst)


@pytest.mark.parametrize("moment", MOMENTS)
def test_overlapping_operations_are_quick_whenever_tables_were_analysed(
    fresh_database: None, operator: Principal, moment: str
) -> None:
    now = clock.now()

    def reached(this: str) -> None:
        if this == moment:
            analyse()

    reached("after the capture")
    first = preview(operator, now, verb=Verb.DROP, ids=FEW)
    reached("after the first preview")
    confirm(operator, first, now)
    carry_out(first, now)
    reached("after the first")

    some = quick(lambda: preview(operator, now, verb=Verb.DROP, ids=HALF))
    everything = quick(lambda: preview(operator, now, verb=Verb.DROP, query=EVERYTHING))
    quick(lambda: preview_summaries.summarize(operation=everything))
    quick(lambda: confirm(operator, some, now))
    quick(lambda: confirm(operator, everything, now))

    assert quick(lambda: carry_out(some, now)) == {"dropped": 9_000, "skipped": 1_000}
    assert quick(lambda: carry_out(everything, now)) == {
        "dropped": 10_000,
        "skipped": 10_000,
    }
    assert (statistics() == 0) == (moment == "never")


@pytest.mark.parametrize("moment", ["never", "after the capture"])
def test_a_requeue_of_all_messages_and_its_pages_are_quick(
    fresh_database: None, orders: Topic, stream: Redis, operator: Principal, moment: str
) -> None:
    now = clock.now()
    browser = signed_in(now)
    if moment != "never":
        analyse()
    quick(lambda: look_at_pages(browser, *PAGES))

    operation = quick(lambda: preview(operator, now, query=EVERYTHING, ordered=True))
    other = quick(lambda: preview(operator, now, query=EVERYTHING))
    quick(lambda: confirm(operator, other, now))
    assert quick(lambda: carry_out(other, now)) == {"sent": MESSAGES}
    assert operation.total == MESSAGES

    copies = sent_messages(stream)
    quick(lambda: handle(copies[:ANSWERS], now), in_all=1.0)
    quick(lambda: fail_again(copies[ANSWERS : 2 * ANSWERS], now), in_all=1.0)
    came_back = {"confirmed": ANSWERS, "recurred": ANSWERS}
    assert counts_of(other) == {"sent": MESSAGES - 2 * ANSWERS, **came_back}
    quick(lambda: look_at_pages(browser, *PAGES, f"/operations/{other.pk}"))


def signed_in(now: datetime) -> Client:
    browser = Client()
    browser.force_login(
        create_user(
            username="anna",
            password="correct horse",
            role=Role.OPERATOR,
            reads_bodies=True,
            actor=Actor.system("test"),
            now=now,
        )
    )
    return browser


def handle(copies: Sequence[Copy], now: datetime) -> None:
    consumer = {"consumer_group": "billing", "client_name": "b", "at": now.isoformat()}
    for some in batched(copies):
        members = [{"redrive": token(c), "topic": "orders", **consumer} for c in some]
        services.confirm(members=members, principal=GUARD, now=now)


def fail_again(copies: Sequence[Copy], now: datetime) -> None:
    for some in batched(copies):
        failed = ((int(copy[b"body"]), token(copy)) for copy in some)
        members = [message(now, n, redrive=redrive) for n, redrive in failed]
        capture(now, *members)


def token(copy: Copy) -> str:
    return copy[b"x-poisonweb-redrive"].decode()


def batched(copies: Sequence[Copy]) -> Iterator[Sequence[Copy]]:
    for start in range(0, len(copies), BATCH):
        yield copies[start : start + BATCH]
