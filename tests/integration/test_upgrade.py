"""People, keys and brokers of an old release after an upgrade.

The oldest release that can be upgraded had no rules yet for names, passwords and
addresses. Its rows are written as SQL, because today's models have other columns. Each
test has a database of its own, and leaves no connection to it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from cryptography.fernet import Fernet
from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from django.db import connection
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.executor import MigrationExecutor
from django.test import Client, override_settings
from psycopg import sql
from psycopg.types.json import Jsonb
from pytest_django import DjangoDbBlocker

from apps.brokers.models import Broker, Topic
from apps.brokers.services import broker_registration
from apps.brokers.services.topics_and_routing_publisher import (
    broker_admin_of,
    settings_of,
)
from apps.capture.models import Lane
from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import Invalid
from apps.poison.models import Hold
from apps.poison.services import counts
from apps.team import services as team
from apps.team.models import ApiKey, User
from apps.team.rights import Principal, Role, Scope
from apps.triage.models import Operation
from apps.triage.services import orphaned_operations_and_expired_rows
from apps.triage.tasks import rescue
from tests.acceptance.web_server_process import url_of_this_database
from tests.failure_report_builders import failure
from tests.many_messages_by_sql import insert_messages
from tests.triage_operation_runner import counts_of
from tests.upgrade_lock_watch import watched

pytestmark = [pytest.mark.together, pytest.mark.django_db(transaction=True)]

THEN = [
    ("audit", "0002_append_only"),
    ("bookmarks", "0003_marks_by_position_once"),
    ("brokers", "0004_topics_with_policies"),
    ("capture", "0006_lanes_that_miss_or_hold"),
    ("poison", "0010_skips_by_topic"),
    ("reports", "0001_initial"),
    ("team", "0004_scopes_of_brokers"),
    ("triage", "0002_give_back_and_order"),
]
# Apps of other projects that were not installed yet.
NOT_YET = [("account", None), ("mfa", None), ("socialaccount", None)]

# Name, role, whether they read bodies, password and its hash. Today's rules would
# refuse every name and password but those of the last.
PEOPLE = [
    *(
        ("admin", Role.ADMIN, True, "password"),
        ("anna", Role.OPERATOR, True, "poisonweb"),
        ("Anna", Role.VIEWER, False, "annaanna1"),
        ("bo\u202eb", Role.OPERATOR, False, "correct horse"),
    )
]
HASHES = {
    "password": "Mh4vEa9XqW1zBp6sDr3tYu$luWlRzE/C13geNQzUqWi1dUxuSQOw7zfbmrRpGLogzk=",
    "poisonweb": "wKq2ZJmFhG5tYd0vX1bLrE$hrwkpB+ksF8RuuJwWTPsifmSy4SGW0RcuEK2l/jV+SQ=",
    "annaanna1": "Qe8nC3uVtB6yHs4kPz9aMf$YEKoA708FKv76ffyKHdhfpS76gisQuhurBlJ3jdNYt0=",
    "correct horse": (
        "Jx7RwL2dNfT5oGiU0cKySv$isTTupGCpN1XmUtwDwNJF/LfTaBFcAI93+04PMrhnd8="
    ),
}
ODD_KEY = " ci\n\u202ejob"
MANY_TOPICS = ["orders", "pay\r*", *(f"topic-{n}" for n in range(200))]
# Name, scopes, topics, and days until it expires; the last one is revoked.
KEYS: list[tuple[str, list[str], list[str], int | None]] = [
    ("consumer", ["capture:write", "skips:read"], ["*"], None),
    (ODD_KEY, ["brokers:read", "capture:write"], MANY_TOPICS, 7),
    ("expired", ["capture:write"], ["*"], -1),
    ("revoked", ["capture:write"], ["*"], None),
]
ELSEWHERE = {"management_url": "http://elsewhere.example:15672"}
MQ = "amqp://u:p@mq.example/"
PRIVATE = "redis://:p@10.1.2.3:6380/0"
ODD_TOPIC = " b\ra\u202e"
WITHOUT_QUEUE = ("unread", "also unread")

INSERT_PERSON = """
INSERT INTO team_user (username, password, role, reads_bodies, is_superuser,
    first_name, last_name, email, is_staff, is_active, date_joined)
VALUES (%s, %s, %s, %s, false, '', '', '', false, true, %s)
"""
PERSON = "SELECT id, password FROM team_user WHERE username = %s"
INSERT_SESSION = "INSERT INTO django_session VALUES (%s, %s, %s)"
INSERT_KEY = """
INSERT INTO team_api_key (name, prefix, digest, scopes, topics, created_at, created_by,
    expires_at, revoked_at)
VALUES (%s, 'pw_', %s, %s, %s, %s, 'system:command line', %s, %s)
"""
INSERT_BROKER = """
INSERT INTO brokers_broker (name, kind, url, options) VALUES (%s, %s, %s, %s)
"""
INSERT_TOPIC = """
WITH topic AS (
    INSERT INTO brokers_topic (name, native_name, dead_letter_queue, max_dequeue_count,
        visibility_timeout, broker_id)
    SELECT %(name)s, %(name)s, %(queue)s, 5, 60, id FROM brokers_broker
    WHERE name = %(broker)s RETURNING id
)
INSERT INTO capture_lane (topic_id, mode, tee_queue, paused, state, detail, captured,
    rate, error, delivered_since)
SELECT id, %(mode)s, %(tee_queue)s, %(paused)s, 'away', 'gone', 7, 0, '', '' FROM topic
"""
INSERT_TOPIC_WITHOUT_QUEUE = """
INSERT INTO brokers_topic (name, native_name, dead_letter_queue, max_dequeue_count,
    visibility_timeout, broker_id)
SELECT %(name)s, %(name)s, '', 5, 60, id FROM brokers_broker WHERE name = 'corp'
"""
INSERT_MESSAGE = """
WITH problem AS (
    INSERT INTO poison_problem (topic_id, consumer_group, fingerprint, version, title,
        summary, inputs, first_seen, last_seen)
    SELECT id, 'billing', %(body)s, 1, 'KeyError', '', '{}', %(now)s, %(now)s
    FROM brokers_topic WHERE name = 'orders' RETURNING *
)
INSERT INTO poison_poison (identity, reuse, topic_id, consumer_group, bookmark, state,
    cause, error_type, error_message, size, digest, failures, attempts, crashes,
    redrives, recurrences, first_failed_at, last_failed_at, captured_at, problem_id,
    dropped_at)
SELECT sha256(%(body)s), 0, topic_id, 'billing', %(body)s, %(state)s, 'exhausted',
    'KeyError', '', 1, sha256(%(body)s), 1, 1, 0, 0, 0, %(now)s, %(now)s, %(now)s, id,
    CASE WHEN %(state)s = 'dropped' THEN %(now)s END
FROM problem RETURNING id
"""
INSERT_OPERATION = """
WITH operation AS (
    INSERT INTO triage_operation (token, verb, state, actor, source, query, topics,
        scope, reason, taken, total, epoch, trouble, troubles, created_at, expires_at,
        confirmed_at, finished_at)
    VALUES (gen_random_uuid(), %(verb)s, %(state)s, 'user:anna', 'ui', 'topic:orders',
        '{*}', %(scope)s, 'of then', true, 1, 0, '', 0, %(now)s, %(now)s,
        CASE WHEN %(state)s <> 'cancelled' THEN %(now)s END,
        CASE WHEN %(state)s <> 'running' THEN %(now)s END) RETURNING id
)
INSERT INTO triage_item (operation_id, poison_id, state, reason, held)
SELECT id, %(message)s, %(item)s, '', %(state)s = 'running' FROM operation
"""
# Verb and state of each, with the state of its one item.
OPERATIONS = [
    ("redrive", "running", "waiting"),
    ("drop", "done", "dropped"),
    # An earlier release said so of a preview that another one had replaced.
    ("redrive", "cancelled", "waiting"),
]
# As far as an upgrade leaves it alone.
ROWS = """
SELECT 'person', ARRAY[username, password, role, reads_bodies::text] FROM team_user
UNION ALL SELECT 'key', ARRAY[name, encode(digest, 'hex'), scopes::text, topics::text,
    expires_at::text, revoked_at::text] FROM team_api_key
UNION ALL SELECT 'broker', ARRAY[name, kind, url, options::text] FROM brokers_broker
UNION ALL SELECT 'topic', ARRAY[name, dead_letter_queue, mode, tee_queue, paused::text,
    captured::text] FROM brokers_topic JOIN capture_lane ON topic_id = id
"""
SCHEMA = """
SELECT 'column', concat_ws(' ', attrelid::regclass, attname, atttypid::regtype,
    atttypmod, attnotnull, pg_get_expr(adbin, adrelid))
FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attnum > 0 AND NOT attisdropped AND relnamespace = 'public'::regnamespace
    AND relkind IN ('r', 'p', 'v') AND NOT relispartition
UNION ALL SELECT 'constraint', concat_ws(' ', conrelid::regclass, conname,
    pg_get_constraintdef(oid))
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    AND NOT EXISTS (
        SELECT FROM pg_class WHERE pg_class.oid = conrelid AND relispartition)
UNION ALL SELECT 'index', indexdef FROM pg_indexes
WHERE schemaname = 'public' AND tablename !~ '_(\\d{8}|default)$'
UNION ALL SELECT 'function', proname FROM pg_proc
WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'trigger', tgname FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'statistics', stxname FROM pg_statistic_ext
"""


# Nothing is written there: it only has to answer.
REDIS = os.environ["CELERY_BROKER_URL"].rsplit("/", 1)[0] + "/14"
VARIABLES = {"CORP_REDIS": REDIS, "BROKER_ORDERS": REDIS, "BROKER_MQ": MQ}
SESSION = "a" * 32


@pytest.fixture(scope="module")
def now() -> datetime:
    return clock.now()


@pytest.fixture
def quick_passwords() -> None:
    """Keep the product's rounds: with others, a sign-in hashes its password again."""


@pytest.fixture(scope="module", autouse=True)
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set the settings and the environment of an installation that is upgraded."""
    var = tmp_path_factory.mktemp("var")
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    with (
        pytest.MonkeyPatch.context() as environment,
        override_settings(
            POISONWEB_VAR=var,
            POISONWEB_DEMO=False,
            POISONWEB_LOOPBACK_BROKERS=False,
            POISONWEB_BROKER_HOSTS=(),
            # It stays in the environment, and would be refused today.
            POISONWEB_ADMIN_PASSWORD="password",
            STATIC_ROOT=var / "static",
            STORAGES={**settings.STORAGES, "staticfiles": {"BACKEND": plain}},
            # Else each new client would read all static files.
            WHITENOISE_AUTOREFRESH=True,
        ),
    ):
        for name, value in VARIABLES.items():
            environment.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def of_then(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, now: datetime
) -> Iterator[str]:
    """Create a database with tables and rows of the old release; return its name."""
    name = f"{connection.settings_dict['NAME']}_of_then"
    with scratch(name):
        with django_db_blocker.unblock(), connected_to(name):
            migrate_to_then()
            write_people(now)
            write_keys(now)
            write_brokers()
            write_topics()
            write_operations(now)
        yield name


@pytest.fixture(scope="module")
def of_today(
    of_then: str, installation: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """Create a copy that today's first start has upgraded; return its name."""
    name = f"{connection.settings_dict['NAME']}_of_today"
    with scratch(name, template=of_then):
        with django_db_blocker.unblock(), connected_to(name):
            start()
        yield name


@pytest.fixture
def upgraded(transactional_db: None, of_today: str) -> Iterator[None]:
    """Connect Django to a copy of the upgraded database, for one test."""
    name = f"{connection.settings_dict['NAME']}_upgraded"
    with scratch(name, template=of_today), connected_to(name):
        yield


@pytest.fixture
def not_upgraded(transactional_db: None, of_then: str) -> Iterator[None]:
    """Connect Django to a copy of the old release's database, for one test."""
    name = f"{connection.settings_dict['NAME']}_not_upgraded"
    with scratch(name, template=of_then), connected_to(name):
        yield


def start() -> None:
    """Do what every start does before it starts the processes."""
    call_command("prepare")


@contextmanager
def scratch(name: str, *, template: str = "template0") -> Iterator[None]:
    """Provide a database; dropping it fails while a session is connected to it."""
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    drop = sql.SQL("DROP DATABASE {}")
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield
        finally:
            server.execute(drop.format(sql.Identifier(name)))


@contextmanager
def connected_to(name: str) -> Iterator[None]:
    usual = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = name
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = usual


def execute(query: str, values: Any = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall() if cursor.description else []


def write_people(now: datetime) -> None:
    for name, role, reads_bodies, password in PEOPLE:
        stored = f"pbkdf2_sha256$1000000${HASHES[password]}"
        execute(INSERT_PERSON, [name, stored, role.value, reads_bodies, now])
    [(number, stored)] = execute(PERSON, ["anna"])
    session = {
        "_auth_user_id": str(number),
        "_auth_user_backend": "django.contrib.auth.backends.ModelBackend",
        "_auth_user_hash": User(password=stored).get_session_auth_hash(),
    }
    values = [SESSION, SessionStore().encode(session), now + timedelta(days=14)]
    execute(INSERT_SESSION, values)


def write_keys(now: datetime) -> None:
    for name, scopes, topics, days in KEYS:
        digest = hashlib.sha256(secret_of(name).encode()).digest()
        expires_at = None if days is None else now + timedelta(days=days)
        revoked_at = now if name == "revoked" else None
        values = [name, digest, scopes, topics, now, expires_at, revoked_at]
        execute(INSERT_KEY, values)


def write_brokers() -> None:
    brokers: list[tuple[str, str, str, dict[str, str]]] = [
        ("loop\u202e", "redis_streams", sealed(REDIS), {}),
        ("private", "redis_streams", sealed(PRIVATE), {}),
        ("mq", "rabbitmq", sealed(MQ), ELSEWHERE),
        ("corp", "redis_streams", "env:CORP_REDIS", {}),
        ("usual", "redis_streams", "env:BROKER_ORDERS", {}),
        ("usual mq", "rabbitmq", "env:BROKER_MQ", ELSEWHERE),
        ("ours", "redis_streams", "env:CELERY_BROKER_URL", {}),
        ("secret", "redis_streams", "env:POISONWEB_SECRET_KEY", {}),
    ]
    for name, kind, url, options in brokers:
        execute(INSERT_BROKER, [name, kind, url, Jsonb(options)])


def write_topics() -> None:
    usual: dict[str, object] = {"mode": "capture", "tee_queue": "", "paused": False}
    for changes in (
        {"name": "orders", "broker": "corp", "queue": "dead"},
        # Two topics could read one queue.
        {"name": ODD_TOPIC, "broker": "corp", "queue": "dead", "paused": True},
        {
            "name": "mirror",
            "broker": "mq",
            "queue": "m",
            "mode": "tee",
            "tee_queue": "t",
        },
        {"name": "third", "broker": "corp", "queue": "dead"},
    ):
        execute(INSERT_TOPIC, {**usual, **changes})
    for name in WITHOUT_QUEUE:
        execute(INSERT_TOPIC_WITHOUT_QUEUE, {"name": name})


def write_operations(now: datetime) -> None:
    for number, (verb, state, item) in enumerate(OPERATIONS):
        values = {"verb": verb, "state": state, "item": item, "now": now}
        values["body"] = values["scope"] = str(number).encode()
        message = {**values, "state": "dropped" if item == "dropped" else "open"}
        [(values["message"],)] = execute(INSERT_MESSAGE, message)
        execute(INSERT_OPERATION, values)


def secret_of(key: str) -> str:
    return f"pw_test_{key.encode().hex()}"


def sealed(url: str) -> str:
    """Seal an address as it was done then; no other key ever opened one."""
    secret = f"poisonweb brokers\0{os.environ['POISONWEB_SECRET_KEY']}".encode()
    box = Fernet(base64.urlsafe_b64encode(hashlib.sha256(secret).digest()))
    return f"sealed:{box.encrypt(url.encode()).decode()}"


def migrate_to_then() -> None:
    executor = MigrationExecutor(connection)
    leaves = executor.loader.graph.leaf_nodes()
    of_django = [node for node in leaves if node[0] in {"auth", "sessions"}]
    types = [node for node in leaves if node[0] == "contenttypes"]
    executor.migrate([*of_django, *types, *THEN, *NOT_YET])


# People.


def admin_client() -> Client:
    """Return the admin's browser, without the second that a password takes."""
    client = Client()
    client.force_login(User.objects.get(username="admin"))
    return client


def signed_in(name: str, password: str) -> Client:
    client = Client()
    answer = client.post("/sign-in", {"username": name, "password": password})
    assert answer.status_code == 302, answer.content.decode()
    return client


def test_people_sign_in_as_before_with_the_same_rights(
    upgraded: None,
) -> None:
    may = {}
    for name, _, _, password in PEOPLE:
        client = signed_in(name, password)
        pages = ("/problems", "/skips/new", "/people")
        answers = [client.get(page).status_code for page in pages]
        principal = User.objects.get(username=name).principal
        may[name] = (answers, principal.may(Scope.BODIES_READ))

    assert may == {
        "admin": ([200, 200, 200], True),
        "anna": ([200, 200, 403], True),
        "Anna": ([200, 403, 403], False),
        "bo\u202eb": ([200, 200, 403], False),
    }
    assert not (settings.POISONWEB_VAR / "admin-password").exists()


def test_sessions_from_before_the_upgrade_have_to_sign_in_again(upgraded: None) -> None:
    client = Client()
    client.cookies["pw_session"] = SESSION

    answer = client.get("/problems")

    assert (answer.status_code, answer["Location"]) == (302, "/sign-in?next=/problems")
    # The same browser comes in with the password.
    right = {"username": "anna", "password": "poisonweb"}
    assert client.post("/sign-in", right).status_code == 302
    assert client.get("/problems").status_code == 200


# Keys.


def statuses(key: str, now: datetime) -> tuple[int, int, int]:
    """Report a failure, ask for the topics and for the skips; give the answers."""
    client = Client(headers={"Authorization": f"Bearer {secret_of(key)}"})
    body = {"failures": [failure(now)]}
    responses = [
        client.post("/api/v1/failures", body, content_type="application/json"),
        client.get("/api/v1/topics"),
        client.get("/api/v1/skips?topic=orders"),
    ]
    first, second, third = (answer.status_code for answer in responses)
    return first, second, third


def test_keys_work_as_before_and_those_that_had_ended_do_not(
    upgraded: None, now: datetime
) -> None:
    assert {name: statuses(name, now) for name, *_ in KEYS} == {
        "consumer": (200, 403, 200),
        ODD_KEY: (200, 200, 403),
        "expired": (401, 401, 401),
        "revoked": (401, 401, 401),
    }
    odd = team.recognise(secret=secret_of(ODD_KEY), now=now)
    assert odd is not None
    assert odd.topics == MANY_TOPICS
    assert [odd.principal.sees(name) for name in ("orders", "pay\rroll", "other")] == [
        *(True, True, False)
    ]


def test_a_key_whose_name_is_refused_today_can_be_revoked(
    upgraded: None, now: datetime
) -> None:
    admin = admin_client()
    key = ApiKey.objects.get(name=ODD_KEY)

    revoked = admin.post(f"/keys/{key.pk}/revoke", {"confirm": "1"})

    assert revoked.status_code == 302
    assert statuses(ODD_KEY, now) == (401, 401, 401)


# Brokers.

ADMIN = Principal(actor=Actor.user("admin"), scopes=frozenset(Scope))


def broker(name: str) -> Broker:
    return Broker.objects.get(name=name)


def place_of(url: str) -> str:
    return url.rpartition("@")[2].rpartition("://")[2].partition("/")[0]


def test_brokers_go_on_by_what_the_upgrade_writes_into_their_lists(
    upgraded: None,
) -> None:
    assert dict(Broker.objects.values_list("name", "allowed_unconfirmed")) == {
        "loop\u202e": [place_of(REDIS)],
        "private": ["10.1.2.3:6380"],
        "mq": ["elsewhere.example:15672", "mq.example:5672"],
        "corp": ["env:CORP_REDIS"],
        "usual": [],
        "usual mq": ["elsewhere.example:15672"],
        "ours": [],
        "secret": [],
    }
    for name in ("loop\u202e", "corp", "usual"):
        with closing(broker_admin_of(broker(name))) as there:
            assert there.ping()
    assert settings_of(broker("private")).url == PRIVATE
    for name in ("mq", "usual mq"):
        reached = settings_of(broker(name))
        assert (reached.url, reached.options) == (MQ, ELSEWHERE)
    for name in ("ours", "secret"):
        with pytest.raises(Invalid, match="does not begin with BROKER_"):
            settings_of(broker(name))


def test_a_second_start_writes_no_list_again(upgraded: None) -> None:
    corp = broker("corp")
    chosen = {"entries": [f"{corp.pk} env:CORP_REDIS"], "strike": "1"}
    admin_client().post("/brokers/allowed", chosen)

    start()

    assert broker("corp").allowed_unconfirmed == []


def test_the_admin_is_shown_the_lists_and_confirms_or_strikes(upgraded: None) -> None:
    admin = admin_client()
    entries = {
        f"{each.pk} {entry}"
        for each in Broker.objects.all()
        for entry in each.allowed_unconfirmed
    }

    page = admin.get("/brokers").content.decode()
    loop, corp = (broker(name).pk for name in ("loop\u202e", "corp"))
    sealed_one, variable = f"{loop} {place_of(REDIS)}", f"{corp} env:CORP_REDIS"
    admin.post("/brokers/allowed", {"entries": [sealed_one, variable], "confirm": "1"})
    confirmed = [settings_of(broker(name)).url for name in ("loop\u202e", "corp")]
    admin.post("/brokers/allowed", {"entries": [sealed_one, variable], "strike": "1"})

    assert len(entries) == 6
    assert all(f'value="{entry}"' in page for entry in entries)
    assert page.count('name="entries"') == 6
    assert confirmed == [REDIS, REDIS]
    with pytest.raises(Invalid, match="leads to this machine itself"):
        settings_of(broker("loop\u202e"))
    with pytest.raises(Invalid, match="CORP_REDIS does not begin with BROKER_"):
        settings_of(broker("corp"))


@pytest.mark.parametrize(
    ("kind", "url", "options", "why"),
    [
        ("redis_streams", "env:CORP_REDIS", {}, "does not begin with BROKER_"),
        ("redis_streams", PRIVATE, {}, "into a private network"),
        ("rabbitmq", "env:BROKER_MQ", ELSEWHERE, "another host than that of"),
        ("redis_streams", "redis://127.0.0.1:1/3", {}, "leads to this machine itself"),
    ],
)
def test_a_new_broker_has_nothing_of_the_lists_of_others(
    upgraded: None,
    now: datetime,
    kind: str,
    url: str,
    options: dict[str, object],
    why: str,
) -> None:
    with pytest.raises(Invalid, match=why):
        broker_registration.add(
            name="new", kind=kind, url=url, options=options, principal=ADMIN, now=now
        )


# Operations.


def test_operations_go_on_and_can_be_undone_after_the_upgrade(
    upgraded: None, now: datetime
) -> None:
    admin = admin_client()
    running, done, replaced = Operation.objects.order_by("pk")
    holders = list(Hold.objects.values_list("operation", flat=True))

    rescue()
    undone = admin.post(f"/operations/{done.pk}/undo")
    orphaned_operations_and_expired_rows.prune(now=now)

    assert holders == [running.pk]
    assert (counts_of(running), counts_of(done)) == ({"waiting": 1}, {"dropped": 1})
    assert undone.status_code == 302
    assert not Operation.objects.filter(pk=replaced.pk).exists()
    pages = [f"/operations/{each.pk}" for each in (running, done)]
    assert [admin.get(page).status_code for page in pages] == [200, 200]


def test_nobody_goes_back_where_operations_would_be_lost(upgraded: None) -> None:
    rescue()

    with pytest.raises(IrreversibleError, match="There are operations of this release"):
        migrate_to_then()
    call_command("migrate", verbosity=0)  # what the way back had undone so far
    assert counts_of(Operation.objects.earliest("pk")) == {"waiting": 1}


# Beside others who are at work.

# More than are converted in one transaction.
MESSAGES, PROBLEMS = 12_000, 3
INSERT_LARGE_OPERATION = """
WITH operation AS (
    INSERT INTO triage_operation (token, verb, state, actor, source, query, topics,
        scope, reason, taken, total, epoch, trouble, troubles, created_at, expires_at,
        confirmed_at)
    VALUES (gen_random_uuid(), 'redrive', %(state)s, 'user:anna', 'ui', 'topic:orders',
        '{*}', %(state)s, '', true, %(total)s, 0, '', 0, %(now)s, %(now)s,
        CASE WHEN %(state)s <> 'preview' THEN %(now)s END) RETURNING id
)
INSERT INTO triage_item (operation_id, poison_id, state, reason, held)
SELECT operation.id, poison.id, 'waiting', '', %(state)s <> 'preview'
FROM operation, poison_poison poison WHERE error_type = %(error)s
"""
HELD = """
SELECT operation.state, count(*) FROM poison_hold
JOIN triage_operation operation ON operation.id = operation GROUP BY 1 ORDER BY 1
"""
BACKUPS, BACKUP_SECONDS = 2, 5.0
# In seconds: what anybody may wait for an upgrade.
LONGEST_LOCK = 2.0


def back_up(database_url: str) -> None:
    """Lock all tables for some seconds, as a back-up does that reads them.

    Writers do not wait for an index that is built concurrently, which may be all that
    the first back-up delays. A second one follows at once, and delays more.
    """
    tables = "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
    with psycopg.connect(database_url) as session:
        for _ in range(BACKUPS):
            names = [name for (name,) in session.execute(tables).fetchall()]
            session.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS SHARE MODE")
            time.sleep(BACKUP_SECONDS)
            session.rollback()


def test_nobody_waits_long_for_an_upgrade_that_waits_for_a_backup(
    not_upgraded: None, now: datetime
) -> None:
    with psycopg.connect(url_of_this_database()) as session:
        insert_messages(session, topic="orders", number=MESSAGES, problems=PROBLEMS)
    size = MESSAGES // PROBLEMS
    for number, state in enumerate(("running", "queued", "preview"), start=1):
        error = {"error": f"Unpayable{number:02}", "state": state}
        execute(INSERT_LARGE_OPERATION, {**error, "total": size, "now": now})
    messages = [
        number for (number,) in execute("SELECT id FROM poison_poison LIMIT 99")
    ]

    url = url_of_this_database()
    with watched(url, poisons=messages) as watch, ThreadPoolExecutor(1) as thread:
        backups = thread.submit(back_up, url)
        start()
        backups.result()

    assert watch.longest_write < LONGEST_LOCK
    assert watch.longest_lock[0] < LONGEST_LOCK, watch.longest_lock
    assert execute(HELD) == [("queued", size), ("running", size + 1)]
    assert counts.check(now=now) == []


# Topics, and the way back.


def test_topics_keep_their_lanes_and_a_shared_queue_belongs_to_the_oldest(
    upgraded: None,
) -> None:
    lanes = Lane.objects.order_by("topic_id").values_list(
        "topic__name", "mode", "paused", "tee_queue", "topic__shares_queue"
    )
    assert list(lanes) == [
        ("orders", "capture", False, "", False),
        (ODD_TOPIC, "capture", True, "", True),
        ("mirror", "tee", False, "t", False),
        ("third", "capture", False, "", True),
    ]
    queueless = Topic.objects.filter(name__in=WITHOUT_QUEUE)
    assert list(queueless.values_list("shares_queue", flat=True)) == [False, False]
    admin = admin_client()
    for topic in Topic.objects.all():
        assert admin.get(f"/topics/{topic.pk}").status_code == 200


def facts(query: str) -> Sequence[tuple[Any, ...]]:
    return sorted(execute(query), key=repr)


def test_migrating_back_restores_the_old_tables_and_rows(
    not_upgraded: None, now: datetime
) -> None:
    schema, rows = facts(SCHEMA), facts(ROWS)
    start()
    assert facts(SCHEMA) != schema
    # What today writes must not be in the way.
    Client().post("/sign-in", {"username": "anna", "password": "wrong"})
    signed_in("Anna", "annaanna1")
    assert statuses("revoked", now) == (401, 401, 401)

    migrate_to_then()

    assert (facts(SCHEMA), facts(ROWS)) == (schema, rows)
    # And the upgrade can be begun again.
    start()
    assert broker("corp").allowed_unconfirmed == ["env:CORP_REDIS"]
