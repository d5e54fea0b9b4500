"""What all tests share: the clock's noon, people who may act, and real servers.

Tests of locks, threads and snapshots need `django_db(transaction=True)`: what a test's
own open transaction wrote is visible in no snapshot.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.test import TransactionTestCase
from hypothesis import HealthCheck, settings

from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.core.actor import Actor
from apps.team.rights import Principal, Scope
from tests import no_dns_lookups, no_network
from tests.acceptance.product_process import ODD_NAME, START, Product, clone, started
from tests.postgres_and_redis_plugin import FOLDER
from tests.registered_brokers import SYSTEM, broker_named
from tests.template_database import migrated

# A busy machine is no failure; and what a run finds, its seed repeats.
settings.register_profile(
    "patient",
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

# A shell's background job is deaf to Ctrl-C, and so would be all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

no_dns_lookups.install()
no_network.install()

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def pytest_configure(config: pytest.Config) -> None:
    present = "present: `now` is the present, for code that asks the clock itself"
    config.addinivalue_line("markers", present)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let the garbage collector never visit the million objects of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        # Tests make many objects that live for a moment: ten per cent of the run.
        gc.set_threshold(50_000)


@pytest.fixture
def now(request: pytest.FixtureRequest) -> datetime:
    """Return noon, or the present time where a test is marked so."""
    return clock.now() if request.node.get_closest_marker("present") else NOON


@pytest.fixture
def operator() -> Principal:
    return Principal(actor=Actor.user("anna"), scopes=frozenset(Scope))


def wipe(*_: object) -> None:
    """Empty every table after a test whose commits were real.

    Django would truncate them all at once, but each would cost new files for itself and
    for its indexes: only the large are truncated. And no role may empty the trail: its
    owner has to take the guard away first.
    """
    with connection.cursor() as cursor:
        filled = _filled(cursor)
        if "audit_entry" in filled:
            _each(cursor, UNGUARD)
        _empty(cursor, filled)
        if "audit_entry" in filled:
            _each(cursor, GUARD)
        cursor.execute("UPDATE audit_head SET seq = 0, hash = sha256('poisonweb')")


KEPT = ("django_migrations", "audit_head")
LARGE = 1_000_000
FILLED = """
    SELECT oid::regclass::text, pg_relation_size(oid) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    AND relname <> ALL (%s) AND pg_relation_size(oid) > 0
"""
# Each is committed by itself: a right that is given and a table that is changed, in one
# transaction, are a deadlock with the vacuum that is at work there.
UNGUARD = (
    "ALTER TABLE audit_entry DISABLE TRIGGER audit_entry_append_only",
    "GRANT DELETE, TRUNCATE ON audit_entry TO CURRENT_USER",
)
GUARD = (
    "REVOKE DELETE, TRUNCATE ON audit_entry FROM CURRENT_USER",
    "ALTER TABLE audit_entry ENABLE TRIGGER audit_entry_append_only",
)
COUNT_ANEW = """
    SELECT setval(quote_ident(sequencename)::regclass, start_value, false)
    FROM pg_sequences
    WHERE last_value IS NOT NULL AND sequencename <> 'django_migrations_id_seq'
"""


def _filled(cursor: CursorWrapper) -> dict[str, int]:
    """Return the bytes of each table that has rows, or had some lately."""
    cursor.execute(FILLED, [list(KEPT)])
    return dict(cursor.fetchall())


def _each(cursor: CursorWrapper, statements: Sequence[str]) -> None:
    for statement in statements:
        cursor.execute(statement)


def _empty(cursor: CursorWrapper, filled: Mapping[str, int]) -> None:
    large = [name for name, size in filled.items() if size > LARGE]
    if large:
        cursor.execute(f"TRUNCATE {', '.join(large)} CASCADE")
    # At once: whether all that rows refer to is there is asked at the end.
    with transaction.atomic():
        for name in filled.keys() - {*large}:
            cursor.execute(f"DELETE FROM {name}")
        # Triggers have counted that there are fewer poisons now.
        if "poison_poison" in filled:
            cursor.execute("DELETE FROM poison_count")
            cursor.execute("DELETE FROM poison_count_change")


def count_anew(*_: object) -> None:
    """Let ids begin at 1; those that a test before has rolled back were counted too."""
    with connection.cursor() as cursor:
        cursor.execute(COUNT_ANEW)


TransactionTestCase._fixture_setup = count_anew  # type: ignore[attr-defined] # Django's own
TransactionTestCase._fixture_teardown = wipe  # type: ignore[attr-defined] # Django's own


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None,
) -> None:
    """Let workers copy a database; on a developer's own servers each migrates one."""
    if FOLDER in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
        template = migrated(Path(os.environ[FOLDER]))
        connection.settings_dict["TEST"]["TEMPLATE"] = template


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Drop no database where the server is the run's own: it ends with the run."""
    return FOLDER in os.environ


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Give the whole product with its sample, as a newcomer starts it.

    It is one for all who ask: they find what was decided before, and leave it at work.
    """
    tree = clone(tmp_path_factory.mktemp("product") / ODD_NAME)
    with started(tree, *START) as product:
        yield product


@pytest.fixture
def redis_url(worker_id: str) -> Iterator[str]:
    """Return an empty Redis database that no other worker of this run touches."""
    worker = 0 if worker_id == "master" else int(worker_id.removeprefix("gw"))
    # Of one's own server, beside those that tests know by their numbers: 14 and 15.
    number = worker + (16 if FOLDER in os.environ else 1)
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
    broker = broker_named("redis", kind="redis_streams", url=redis_url, now=NOON)
    topic = brokers.register_topic(
        name="orders",
        broker=broker,
        dead_letter_queue="orders-poison",
        policy={"visibility_timeout": 0.2, "max_dequeue_count": 3},
        actor=SYSTEM.actor,
        now=NOON,
    )
    Lane.objects.create(topic=topic, mode=Mode.CAPTURE.value)
    return topic
