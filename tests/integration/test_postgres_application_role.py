"""The product at work as a role that owns no table, and what that role cannot do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
from django.core.checks import Tags, run_checks
from django.core.management import CommandError, call_command
from django.db import Error, connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import Settings
from redis import Redis

from apps.audit import checkpointing, verification
from apps.audit import services as audit
from apps.audit.models import Entry
from apps.audit.services import Action
from apps.bookmarks.models import BookmarkPosition
from apps.brokers.models import Topic
from apps.capture import daily_partition_creation
from apps.capture.models import Mode
from apps.core import advisory_locks, shared_postgres_snapshot
from apps.core.actor import Actor
from apps.poison import skip_addition_and_removal
from apps.poison.models import Poison
from apps.reports.models import Day, Run
from apps.reports.services import next_unfinished_run as nights
from apps.reports.services import planning, report_run_execution
from apps.team import services as team
from apps.team.rights import Principal, Role
from apps.triage.operation_states import Verb
from apps.triage.services import orphaned_operations_and_expired_rows, position_moves
from apps.triage.services.position_moves import MoveTarget, Strategy
from poisonweb import database_role_rights
from poisonweb.checks import ID
from tests.failure_report_builders import capture as report
from tests.failure_report_builders import count_up, counter, failure, poisons
from tests.in_memory_queue_broker import Queues, adapted
from tests.lane_crash_simulation import drain_all, topic_on_queues
from tests.position_opening_and_settling import opened, settle, update
from tests.skip_builders_and_list_mirror import added
from tests.triage_operation_runner import confirm, counts_of, preview, run

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
PASSWORD = secrets.token_urlsafe(16)
FAR = date(2032, 2, 27)
FAR_PARTITIONS = """
SELECT relname FROM pg_class WHERE relispartition AND relname LIKE '%\\_2032____'
"""


@pytest.fixture
def role() -> Iterator[str]:
    """Make a role of the application; roles belong to the whole server."""
    name = f"app {connection.settings_dict['NAME']}"
    database_role_rights.grant(role=name, password=PASSWORD)
    yield name
    remove(name)


def remove(role: str) -> None:
    with connection.cursor() as cursor:
        quoted = connection.ops.quote_name(role)
        # Who made a role may drop it, but not what it was given.
        cursor.execute(f"GRANT {quoted} TO CURRENT_USER WITH INHERIT TRUE")
        cursor.execute(f"DROP OWNED BY {quoted}")
        cursor.execute(f"DROP ROLE {quoted}")


@contextmanager
def working_as(role: str) -> Iterator[None]:
    """Let this process, and all sessions that it opens, be of this role."""
    owner = {name: connection.settings_dict[name] for name in ("USER", "PASSWORD")}
    connection.close()
    connection.settings_dict.update(USER=role, PASSWORD=PASSWORD)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(owner)


@pytest.fixture
def application(role: str) -> Iterator[None]:
    with working_as(role):
        yield


@pytest.fixture
def far() -> Iterator[date]:
    """Give a day whose partitions, and those of its week, go after the test."""
    yield FAR
    with connection.cursor() as cursor:
        cursor.execute(FAR_PARTITIONS)
        for (name,) in cursor.fetchall():
            cursor.execute(f"DROP TABLE {name}")


def who() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        return str(cursor.fetchone()[0])


@pytest.mark.usefixtures("application")
def test_messages_are_captured_requeued_handled_dropped_and_restored(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    open_poisons = poisons(now, 3)
    count_up(now, counter())

    sending = confirm(operator, preview(operator, now, ids=(open_poisons[0].pk,)), now)
    run(sending, now)
    dropping = confirm(
        operator, preview(operator, now, verb=Verb.DROP, ids=(open_poisons[1].pk,)), now
    )
    run(dropping, now)
    undoing = confirm(
        operator,
        preview(operator, now, verb=Verb.RESTORE, dropped_by=dropping.pk),
        now,
    )
    run(undoing, now)

    assert counts_of(sending) == {"sent": 1}
    assert stream.xlen("orders") == 1
    assert counts_of(undoing) == {"restored": 1}
    assert verification.verify().ok


@pytest.mark.usefixtures("application")
def test_a_lane_drains_its_queue(now: datetime) -> None:
    broker = Queues()
    with adapted(broker):
        topic = topic_on_queues(now, mode=Mode.CAPTURE)
        broker.put("mail-dead", b"one")

        drain_all(topic, now)

    assert Poison.objects.get().topic == topic


@pytest.mark.usefixtures("application")
def test_skips_and_positions_are_kept_and_moved(
    operator: Principal, now: datetime
) -> None:
    skip = added(now)
    skip_addition_and_removal.remove(
        skip_id=skip.pk, reason="over", principal=operator, now=now
    )
    epoch = opened(now - HOUR).epoch
    settle(now - HOUR, update(epoch, (0, 100), received=150, bookmark="b"))

    _, moved = position_moves.move(
        position_id=BookmarkPosition.objects.get().pk,
        wish=MoveTarget(strategy=Strategy.EXACT, to={"": 50}),
        reason="a bad deploy",
        fence=True,
        principal=operator,
        now=now,
        agreed=lambda _: True,
    )

    assert moved.reason == "a bad deploy"


@pytest.mark.usefixtures("far", "application")
def test_upkeep_prunes_makes_partitions_and_signs_the_trail(
    operator: Principal,
    orders: Topic,
    now: datetime,
    settings: Settings,
    tmp_path: Path,
    far: date,
) -> None:
    settings.POISONWEB_VAR = tmp_path
    poisons(now, 1)
    preview(operator, now - timedelta(days=3))

    pruned = orphaned_operations_and_expired_rows.prune(now=now)
    partition_names = daily_partition_creation.make(today=far)
    checkpoint = checkpointing.take(now=now)

    assert pruned.previews == 1
    assert len(partition_names) == 24
    assert owners(partition_names) == {owner()}
    assert checkpoint is not None
    # Locks and snapshots have sessions of their own.
    with (
        advisory_locks.attempt("a test") as lock_of_test,
        shared_postgres_snapshot.open_snapshot() as moment,
    ):
        assert lock_of_test
        assert moment.query("SELECT current_user", {}) == [(who(),)]


@pytest.mark.usefixtures("application")
def test_people_and_keys_are_made_and_ended(now: datetime) -> None:
    actor = Actor.system("test")
    team.create_user(
        username="zoe",
        password="correct horse",
        role=Role.OPERATOR,
        reads_bodies=False,
        actor=actor,
        now=now,
    )
    team.end_sessions(username="zoe", actor=actor, now=now)

    assert Entry.objects.filter(subject="user:zoe").count() == 2


@pytest.mark.spark
@pytest.mark.usefixtures("application")
def test_a_night_is_reported(settings: Settings, tmp_path: Path) -> None:
    settings.POISONWEB_LAKE = str(tmp_path / "lake")
    at = datetime.fromisoformat("2026-11-19T12:00:00+00:00")
    night = datetime.fromisoformat("2026-11-20T02:00:00+00:00")
    report(at, failure(at))
    count_up(at, counter(minute=at.isoformat()))

    planned = planning.plan(hour=1, now=night)
    while (run_id := nights.next_to_run()) is not None:
        report_run_execution.run(run_id=run_id, clock=lambda: night)

    runs = Run.objects.filter(pk__in=[each.pk for each in planned])
    assert [each.trouble for each in runs] == [""]
    assert Day.objects.get().rows_in == 2


def owner() -> str:
    return str(owner_of("audit_entry"))


def owner_of(table: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relowner::regrole::text FROM pg_class WHERE oid = %s::regclass",
            [table],
        )
        return str(cursor.fetchone()[0])


def owners(tables: list[str]) -> set[str]:
    return {owner_of(table) for table in tables}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entry SET record = '{}'",
        "DELETE FROM audit_entry",
        "TRUNCATE audit_entry",
        "DELETE FROM audit_head",
        "INSERT INTO audit_head (id, seq, hash) VALUES (1, 0, '')",
        "ALTER TABLE audit_entry DISABLE TRIGGER USER",
        "ALTER TABLE audit_entry ALTER COLUMN actor DROP EXPRESSION",
        "DROP TRIGGER audit_entry_append_only ON audit_entry",
        "DROP TABLE audit_entry",
        "CREATE OR REPLACE FUNCTION audit_entry_is_append_only() RETURNS trigger"
        " LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE VIEW audit_lie AS SELECT 1",
        "CREATE TABLE mine (id int)",
        "CREATE SCHEMA mine",
        "TRUNCATE poison_poison CASCADE",
        "DROP TABLE poison_failure_default",
        "DELETE FROM poison_failure_default",
        "ALTER TABLE poison_failure DETACH PARTITION poison_failure_default",
        "CREATE INDEX mine ON poison_poison (id)",
        "INSERT INTO django_migrations (app, name, applied) VALUES ('a', 'b', now())",
        "ALTER FUNCTION poisonweb_make_partitions(date) RESET search_path",
        "DROP FUNCTION poisonweb_make_partitions(date)",
        "SET ROLE {owner}",
        "SET session_replication_role = replica",
        "ALTER ROLE {owner} PASSWORD 'mine'",
        "CREATE ROLE other",
        "COPY audit_entry TO PROGRAM 'cat'",
    ],
)
def test_a_statement_beyond_the_role_is_refused(
    statement: str, role: str, now: datetime
) -> None:
    seq = audit.record(
        action=Action.KEY_REVOKED, subject="api_key:a", actor=Actor.user("b"), now=now
    )
    statement = statement.replace("{owner}", owner())

    with (
        working_as(role),
        pytest.raises(Error) as refusal,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)

    assert refusal.value.__cause__.sqlstate == "42501"  # type: ignore[union-attr]
    assert Entry.objects.filter(seq=seq).exists()
    assert verification.verify().ok


def test_a_table_of_the_caller_does_not_stand_for_ours_when_partitions_are_made(
    role: str, far: date
) -> None:
    with working_as(role), connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE poison_failure_default (day date)")
        cursor.execute("CREATE TEMP TABLE pg_class (relnamespace oid, relname name)")
        cursor.execute("SET search_path = pg_temp, public")
        partition_names = daily_partition_creation.make(today=far)

    assert len(partition_names) == 24
    assert owners(partition_names) == {owner()}


def test_new_partitions_can_be_read_and_not_written_by_their_own_names(
    role: str, far: date
) -> None:
    with working_as(role):
        partition_names = daily_partition_creation.make(today=far)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {partition_names[0]}")
            assert cursor.fetchone() == (0,)
            cursor.execute(
                "SELECT has_table_privilege(%s, 'DELETE')", [partition_names[0]]
            )
            assert cursor.fetchone() == (False,)


def test_every_table_has_exactly_the_expected_rights(role: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT relname, array_agg(DISTINCT privilege ORDER BY privilege)
                FILTER (WHERE has_table_privilege(%s, pg_class.oid, privilege))
            FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE',
                'TRUNCATE', 'REFERENCES', 'TRIGGER', 'MAINTAIN']) AS privilege
            WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace
            GROUP BY relname, relispartition HAVING NOT relispartition
            """,
            [role],
        )
        rights = {name: set(privileges or ()) for name, privileges in cursor.fetchall()}

    assert rights.pop("audit_entry") == {"SELECT", "INSERT"}
    assert rights.pop("audit_head") == {"SELECT", "UPDATE"}
    assert rights.pop("django_migrations") == {"SELECT"}
    assert {*map(frozenset, rights.values())} == {frozenset(database_role_rights.USUAL)}


def test_other_rights_of_the_role_are_revoked(role: str) -> None:
    with connection.cursor() as cursor:
        quoted = connection.ops.quote_name(role)
        cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {quoted}")

    database_role_rights.grant(role=role)

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT has_table_privilege(%s, 'audit_entry', 'DELETE')", [role]
        )
        assert cursor.fetchone() == (False,)


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        ("ALTER ROLE {role} CREATEDB", "create roles or databases"),
        ("GRANT CREATE ON SCHEMA public TO PUBLIC", "CREATE in the schema"),
    ],
)
def test_a_role_that_could_do_more_is_refused(
    role: str, change: str, obstacle: str
) -> None:
    quoted = connection.ops.quote_name(role)
    with connection.cursor() as cursor:
        cursor.execute(change.format(role=quoted))

    try:
        with pytest.raises(CommandError, match=obstacle):
            call_command("grant_application_role", role)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")


def test_the_owner_cannot_be_the_applications_role() -> None:
    with pytest.raises(CommandError, match="the owner of the tables"):
        call_command("grant_application_role", owner().strip('"'))


@pytest.mark.parametrize("name", ["nobody here", "", "x" * 64])
def test_a_missing_role_is_named_in_the_error(name: str) -> None:
    with pytest.raises(CommandError, match="role"):
        call_command("grant_application_role", name)


def test_prepare_makes_the_role_and_gives_it_its_rights(
    role: str, settings: Settings, tmp_path: Path
) -> None:
    settings.POISONWEB_VAR = tmp_path
    settings.STATIC_ROOT = tmp_path / "static"
    settings.POISONWEB_DEMO = False
    settings.POISONWEB_APPLICATION_ROLE = role
    settings.POISONWEB_APPLICATION_PASSWORD = PASSWORD
    remove(role)

    call_command("prepare")

    with working_as(role):
        assert who() == role
        assert Entry.objects.exists()


def newest_migration(app: str) -> str:
    [(_, name)] = MigrationLoader(connection).graph.leaf_nodes(app)
    return str(name)


def test_only_the_owner_can_prepare_what_is_to_be_migrated(
    role: str, settings: Settings, tmp_path: Path
) -> None:
    settings.POISONWEB_VAR = tmp_path
    settings.STATIC_ROOT = tmp_path / "static"
    settings.POISONWEB_DEMO = False
    last = ("capture", newest_migration("capture"))
    MigrationRecorder(connection).record_unapplied(*last)

    try:
        with (
            working_as(role),
            pytest.raises(CommandError, match="let DATABASE_URL name the owner"),
        ):
            call_command("prepare")
    finally:
        MigrationRecorder(connection).record_applied(*last)


def test_check_deploy_warns_of_one_role_for_all(role: str) -> None:
    def warned() -> bool:
        warnings = run_checks(tags=[Tags.security], include_deployment_checks=True)
        return ID in {each.id for each in warnings}

    as_owner = warned()
    with working_as(role):
        apart = warned()

    assert (as_owner, apart) == (True, False)
