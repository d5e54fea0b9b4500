"""What all tests share: the clock's noon, people who may act, and real servers.

Tests of locks, threads and snapshots need `django_db(transaction=True)`: what a test's
own open transaction wrote is visible in no snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import redis
from django.db import connection
from django.test import TransactionTestCase
from hypothesis import settings

from apps.brokers import services as brokers
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.team.rights import Principal, Scope

# A busy machine is no failure.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    return NOON


@pytest.fixture
def operator() -> Principal:
    return Principal(actor=Actor.user("anna"), scopes=frozenset(Scope))


def wipe(*_: object) -> None:
    """Empty every table after a test whose commits were real.

    Django would truncate them all at once, but nobody may do that to the trail: its
    owner has to take the guard away first.
    """
    with connection.cursor() as cursor:
        tables = [
            name
            for name in connection.introspection.table_names()
            if name not in {"django_migrations", "audit_head"}
        ]
        cursor.execute("GRANT TRUNCATE ON audit_entry TO CURRENT_USER")
        cursor.execute(
            "ALTER TABLE audit_entry DISABLE TRIGGER audit_entry_append_only"
        )
        cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
        cursor.execute("ALTER TABLE audit_entry ENABLE TRIGGER audit_entry_append_only")
        cursor.execute("REVOKE TRUNCATE ON audit_entry FROM CURRENT_USER")
        cursor.execute("UPDATE audit_head SET seq = 0, hash = sha256('poisonweb')")


TransactionTestCase._fixture_teardown = wipe  # type: ignore[attr-defined] # Django's own


@pytest.fixture
def redis_url(worker_id: str) -> Iterator[str]:
    """Give an empty Redis database that no other worker of this run touches."""
    number = 1 + int(worker_id.removeprefix("gw") or 0) if worker_id != "master" else 1
    url = os.environ["CELERY_BROKER_URL"].rsplit("/", 1)[0] + f"/{number}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@pytest.fixture
def stream(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def orders(redis_url: str) -> Topic:
    """Give the topic `orders`, carried by a real Redis. Needs a database fixture."""
    actor = Actor.system("test")
    broker = brokers.register_broker(
        name="redis", kind="redis_streams", url=redis_url, actor=actor, now=NOON
    )
    return brokers.register_topic(
        name="orders",
        broker=broker,
        dead_letter_queue="orders-poison",
        policy={"visibility_timeout": 0.2, "max_dequeue_count": 3},
        actor=actor,
        now=NOON,
    )
