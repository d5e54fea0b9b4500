"""`PostgresLocks`: what is true of tickets, sessions and poolers."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from poisonguard import Away, Misconfigured
from poisonguard.locks import ResourceLock
from poisonguard.locks.lock_server import ANSWER_SECONDS, LockAttempt
from poisonguard.locks.postgres import PostgresLocks, schema
from poisonguard.locks.postgres_connection import (
    CLIENT_SETTINGS,
    SERVER_SETTINGS,
    LockConnection,
)
from poisonguard.locks.postgres_queues import IDLE_LOOKS
from tests import preloaded_fork_server
from tests.brokers import pgbouncer
from tests.contracts import lock_contender
from tests.contracts.postgres_and_zookeeper_lock_fixtures import (
    LinkProxy,
    PostgresLockStage,
    lock_database,
)
from tests.waiting import wait_until

FORKS = preloaded_fork_server.of(lock_contender.__name__)
PAGE = Path(__file__).parents[2] / "docs/resource-lock.md"
PATIENCE = 60.0
FAR_AWAY = 3_600.0
WAITERS = 1_000
LOOKS = 20
TASKS = 40  # more than `asyncio.to_thread` has threads
# Since when, too: a session that just begins to work may still be shown as idle.
IDLE = """
SELECT pid, state_change, backend_xmin, backend_xid FROM pg_stat_activity
WHERE application_name = %(application_name)s AND state = 'idle'
"""
WAITS_FOR_LOCK = """
SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'
"""
COUNT_LOCKS_AT_COMMIT = """
CREATE TABLE deletions (locks int);
CREATE FUNCTION count_locks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO deletions SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND pid = pg_backend_pid();
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER count_locks AFTER DELETE ON poisonguard_lock_tickets
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_locks();
"""
NO_ROOM = """
CREATE FUNCTION have_no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE 'out of shared memory' USING ERRCODE = 'out_of_memory';
END $$;
CREATE TRIGGER have_no_room BEFORE INSERT ON poisonguard_lock_tickets
FOR EACH ROW WHEN (NEW.resource = 'full') EXECUTE FUNCTION have_no_room();
"""
NO_TICKET = """
CREATE FUNCTION have_no_ticket() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RETURN NULL;
END $$;
CREATE TRIGGER have_no_ticket BEFORE INSERT ON poisonguard_lock_tickets
FOR EACH ROW EXECUTE FUNCTION have_no_ticket();
"""
TABLES = "poisonguard_lock_resources, poisonguard_lock_tickets"


@pytest.fixture
def stage(dsn: str) -> PostgresLockStage:
    return PostgresLockStage(dsn)


@pytest.fixture
def resource() -> str:
    return f"invoices-{uuid4().hex}"


@pytest.fixture
def bare_dsn() -> Iterator[str]:
    """Give a database of which each test may change what it likes."""
    with lock_database() as dsn:
        yield dsn


def through(dsn: str, port: int) -> str:
    address = urlsplit(dsn)
    place = f"{address.username}:{address.password}@127.0.0.1:{port}"
    return address._replace(netloc=place).geturl()


def programs_of_page() -> list[str]:
    return re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text())


def port_of(dsn: str) -> int:
    port = urlsplit(dsn).port
    assert port is not None
    return port


def has_places(stage: PostgresLockStage, resource: str, number: int) -> bool:
    return stage.places(resource) == number


def has_answered_since(connection: LockConnection, moment: float) -> bool:
    return connection.answered_at > moment


# Tickets


def test_a_release_calls_the_next_waiter_only(
    dsn: str, stage: PostgresLockStage, resource: str
) -> None:
    servers = [PostgresLocks(dsn, look_every=FAR_AWAY) for _ in range(4)]
    locks = [ResourceLock(resource, server) for server in servers]
    assert locks[0].acquire()
    waits: list[LockAttempt] = []
    for places, server in enumerate(servers[1:], start=2):
        waits.append(server.attempt(resource))
        wait_until(partial(has_places, stage, resource, places))
    rows = stage.query(
        "SELECT session FROM poisonguard_lock_tickets WHERE resource = %s"
        " ORDER BY number",
        resource,
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        for (session,) in rows:
            connection.execute(f'LISTEN "{session}"')

        locks[0].release()
        grant = waits[0].wait(PATIENCE)
        connection.execute("NOTIFY last")
        connection.execute("SELECT 1")
        calls = [
            notify.channel for notify in connection.notifies(timeout=1, stop_after=1)
        ]
        calls += [notify.channel for notify in connection.notifies(timeout=0)]

    for wait in waits[1:]:
        wait.withdraw()
    for lock in locks:
        lock.destroy()
    assert grant is not None
    assert calls == [rows[1][0]]


def test_dead_tickets_are_forgotten_on_the_way(
    dsn: str, stage: PostgresLockStage, resource: str
) -> None:
    for _ in range(3):
        server = PostgresLocks(dsn)
        assert server.attempt(resource).wait(PATIENCE)
        stage.end_session(server)
        server.close()
    dead = stage.places(resource)

    with ResourceLock(resource, PostgresLocks(dsn)) as grant:
        assert (dead, stage.places(resource), grant.fence) == (1, 1, 4)


def test_a_waiter_looks_soon_on_a_session_that_was_idle(
    dsn: str, stage: PostgresLockStage, resource: str
) -> None:
    holder, server = PostgresLocks(dsn), PostgresLocks(dsn, look_every=0.2)
    assert holder.attempt(resource).wait(PATIENCE)
    with ResourceLock("others", server):
        pass
    assert server._queues is not None
    connection = server._queues._connection
    assert connection is not None
    idle_since = connection.answered_at
    wait_until(partial(has_answered_since, connection, idle_since + 0.1))

    server._queues._look_every = 1.0  # from here on a busy machine has time
    wait = server.attempt(resource)
    wait_until(partial(has_places, stage, resource, 2))
    stage.end_session(holder)
    began = time.monotonic()
    assert wait.wait(PATIENCE)

    assert time.monotonic() - began < 1.0 * IDLE_LOOKS / 2
    holder.close()
    server.close()


def test_fences_go_on_after_every_ticket_is_gone(dsn: str, resource: str) -> None:
    fences = []
    for _ in range(3):
        lock = ResourceLock(resource, PostgresLocks(dsn))
        with lock as grant:
            fences.append(grant.fence)
        lock.destroy()

    assert fences == [1, 2, 3]


def test_the_program_of_the_documentation_runs(dsn: str) -> None:
    (program, *_) = programs_of_page()
    with psycopg.connect(dsn) as database:
        database.execute(
            "CREATE TEMPORARY TABLE invoices AS SELECT 0 AS fence, 'new' AS state"
        )
        names = {"dsn": dsn, "database": database}

        exec(compile(program, PAGE.name, "exec"), names)

        rows = database.execute("SELECT fence, state FROM invoices").fetchall()
    names["lock"].destroy()  # type: ignore[attr-defined]
    assert rows == [(1, "sent")]


def test_the_tasks_of_the_documentation_leave_no_place_behind(
    bare_dsn: str,
) -> None:
    (_, program, *_) = programs_of_page()
    stage = PostgresLockStage(bare_dsn)
    locks, fences = PostgresLocks(bare_dsn), list[int]()
    holder = ResourceLock("invoices", locks)
    names: dict[str, Any] = {"locks": locks}
    exec(compile(program, PAGE.name, "exec"), names)

    grant = holder.acquire(PATIENCE)
    assert grant is not None
    release = grant.release

    class Invoice:
        async def write(self, *, fence: int) -> None:
            await asyncio.sleep(0)  # the worker thread serves another task
            fences.append(fence)

    async def cancel_one_and_send_many() -> None:
        task = asyncio.create_task(names["send"](Invoice()))
        await asyncio.to_thread(wait_until, partial(has_places, stage, "invoices", 2))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, partial(has_places, stage, "invoices", 1))
        release()
        await asyncio.gather(*(names["send"](Invoice()) for _ in range(TASKS)))

    asyncio.run(cancel_one_and_send_many())
    holder.destroy()
    names["waits"].shutdown()
    assert len(fences) == TASKS
    assert fences == sorted(set(fences))


def test_a_locked_queue_holds_up_no_other_one(dsn: str, resource: str) -> None:
    server = PostgresLocks(dsn)
    lock, other = ResourceLock(resource, server), ResourceLock("others", server)
    with lock:
        pass

    with psycopg.connect(dsn) as connection:
        connection.execute(
            "SELECT FROM poisonguard_lock_resources WHERE name = %s FOR UPDATE",
            [resource],
        )
        attempt = server.attempt(resource)
        with other:
            assert not other.lost
    assert attempt.wait(PATIENCE)
    other.destroy()
    lock.destroy()


def test_many_who_wait_for_a_locked_queue_hold_up_no_other_one(
    dsn: str, stage: PostgresLockStage, resource: str
) -> None:
    server = PostgresLocks(dsn)
    lock, other = ResourceLock(resource, server), ResourceLock("others", server)
    with lock:
        pass

    with psycopg.connect(dsn) as connection:
        connection.execute(
            "SELECT FROM poisonguard_lock_resources WHERE name = %s FOR UPDATE",
            [resource],
        )
        # A try of each would take longer than a release waits for its answer.
        attempts = [server.attempt(resource) for _ in range(2 * int(ANSWER_SECONDS))]
        with other:
            pass
    fences = []
    for attempt in attempts:
        grant = attempt.wait(PATIENCE)
        assert grant is not None
        fences.append(grant.fence)
        grant.release()

    assert fences == sorted(fences)
    other.destroy()
    lock.destroy()


def test_a_ticket_lives_until_its_deletion_is_committed(
    bare_dsn: str, resource: str
) -> None:
    with psycopg.connect(bare_dsn) as connection:
        connection.execute(COUNT_LOCKS_AT_COMMIT)
    lock = ResourceLock(resource, PostgresLocks(bare_dsn))
    with lock:
        pass

    with psycopg.connect(bare_dsn) as connection:
        counts = connection.execute("SELECT locks FROM deletions").fetchall()
        locks_after_it = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database"
            " WHERE datname = current_database())"
        ).fetchall()
    lock.destroy()
    assert counts == [(1,)]
    assert locks_after_it == [(0,)]


def test_a_dead_ticket_that_is_locked_costs_no_grant(
    dsn: str, stage: PostgresLockStage, resource: str
) -> None:
    dead, server = PostgresLocks(dsn), PostgresLocks(dsn)
    other = ResourceLock("others", server)
    assert dead.attempt(resource).wait(PATIENCE)
    stage.end_session(dead)
    assert other.acquire(PATIENCE)
    queues = server._queues
    assert queues is not None
    connection = queues._connection
    assert connection is not None

    with psycopg.connect(dsn) as database:
        database.execute(
            "SELECT FROM poisonguard_lock_tickets WHERE resource = %s FOR UPDATE",
            [resource],
        )
        wait = server.attempt(resource)
        wait_until(lambda: stage.query(WAITS_FOR_LOCK, connection._pid) == [(1,)])
        moment = time.monotonic()
        wait_until(lambda: queues.has_ended or has_answered_since(connection, moment))
    assert wait.wait(PATIENCE)
    assert other.release() is True
    server.close()
    dead.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_release_calls_by_a_name_that_is_not_ascii(encoding: str) -> None:
    with lock_database(encoding) as dsn:
        stage = PostgresLockStage(dsn)
        lock = ResourceLock("Bücher", PostgresLocks(dsn, look_every=FAR_AWAY))
        waiting = PostgresLocks(dsn, look_every=FAR_AWAY)
        assert lock.acquire()
        wait = waiting.attempt("Bücher")
        wait_until(partial(has_places, stage, "Bücher", 2))
        lock.release()

        assert wait.wait(PATIENCE)
        waiting.close()
        lock.destroy()


def test_a_name_that_the_database_cannot_write_fails_alone() -> None:
    with lock_database("LATIN1") as dsn:
        server = PostgresLocks(dsn)
        lock, other = ResourceLock("€", server), ResourceLock("others", server)
        with other:
            with pytest.raises(Misconfigured, match="has no equivalent"):
                lock.acquire(PATIENCE)
            assert not other.lost
        lock.destroy()
        other.destroy()


def test_a_ticket_for_which_there_is_no_room_fails_alone(
    bare_dsn: str, resource: str
) -> None:
    with psycopg.connect(bare_dsn) as connection:
        connection.execute(NO_ROOM)
    server = PostgresLocks(bare_dsn)
    lock, other = ResourceLock("full", server), ResourceLock(resource, server)

    with other:
        with pytest.raises(Away, match="no room for a ticket"):
            lock.acquire(PATIENCE)
        assert not other.lost
    lock.destroy()
    other.destroy()


def test_each_schema_has_locks_of_its_own(bare_dsn: str) -> None:
    servers = []
    for name in ("one", "two"):
        with psycopg.connect(bare_dsn) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
            connection.execute(f"SET search_path = {name}")
            connection.execute(schema())
        servers.append(PostgresLocks(f"{bare_dsn}?options=-csearch_path%3D{name}"))

    grants = [server.attempt("invoices").wait(PATIENCE) for server in servers]

    assert [grant and (grant.fence, grant.lost) for grant in grants] == [(1, False)] * 2
    for server in servers:
        server.close()


# Sessions


def test_whatever_ends_the_session_is_told_to_those_who_wait(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn) as connection:
        connection.execute(NO_TICKET)
    server = PostgresLocks(bare_dsn)

    with pytest.raises(Away, match="ValueError"):
        server.attempt("invoices").wait(PATIENCE)
    server.close()


def test_an_answer_is_not_trusted_for_long(dsn: str, resource: str) -> None:
    server = PostgresLocks(dsn, look_every=FAR_AWAY)
    lock = ResourceLock(resource, server)
    assert lock.acquire()
    assert server._queues is not None
    connection = server._queues._connection
    assert connection is not None

    connection.answered_at = answered_at = time.monotonic() - 3
    is_lost = lock.lost

    assert not is_lost
    assert connection.answered_at > answered_at
    lock.destroy()


def test_a_grant_is_lost_before_its_session_closes(
    dsn: str, resource: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PostgresLocks(dsn)
    grant = server.attempt(resource).wait(PATIENCE)
    assert grant is not None
    close, was_lost = LockConnection.close, list[bool]()

    def look_and_close(connection: LockConnection) -> None:
        was_lost.append(grant.lost)
        close(connection)

    monkeypatch.setattr(LockConnection, "close", look_and_close)
    server.close()

    assert was_lost == [True]


def test_a_thousand_waiters_hold_back_no_vacuum(
    dsn: str, stage: PostgresLockStage, resource: str
) -> None:
    holder = ResourceLock(resource, PostgresLocks(dsn))
    server = PostgresLocks(dsn, look_every=0.02)
    assert holder.acquire()
    waits = [server.attempt(resource) for _ in range(WAITERS)]
    wait_until(lambda: stage.places(resource) == 1 + WAITERS)
    connection = server._queues._connection  # type: ignore[union-attr]
    assert connection is not None

    # They look as often as in a day of waiting, only sooner.
    idle = set()
    with psycopg.connect(dsn, autocommit=True) as watching:
        for _ in range(LOOKS):
            wait_until(partial(has_answered_since, connection, connection.answered_at))
            looks = [set(watching.execute(IDLE, CLIENT_SETTINGS)) for _ in range(2)]
            idle |= {(xmin, xid) for *_, xmin, xid in looks[0] & looks[1]}
    with psycopg.connect(dsn, autocommit=True) as connection_to_vacuum:
        notices: list[str] = []
        connection_to_vacuum.add_notice_handler(
            lambda notice: notices.append(str(notice.message_primary))
        )
        connection_to_vacuum.execute("CREATE TABLE bloat AS SELECT 1 AS one")
        connection_to_vacuum.execute("DELETE FROM bloat")

        def removes_the_dead_row() -> bool:
            notices.clear()
            connection_to_vacuum.execute("VACUUM (VERBOSE) bloat")
            return any("0 are dead but not yet removable" in each for each in notices)

        # A look that runs just now has a snapshot, for some milliseconds.
        wait_until(removes_the_dead_row, describe=lambda: notices)
        connection_to_vacuum.execute("DROP TABLE bloat")

    assert not any(wait.is_over for wait in waits)
    holder.destroy()
    server.close()
    assert idle == {(None, None)}


def test_the_session_notices_a_lost_peer_and_commits_durably(bare_dsn: str) -> None:
    role = urlsplit(bare_dsn).username
    name = urlsplit(bare_dsn).path.removeprefix("/")
    defaults = (
        "synchronous_commit = off",
        "default_transaction_isolation=serializable",
    )
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        for default in defaults:
            connection.execute(f"ALTER ROLE {role} IN DATABASE {name} SET {default}")
    locks = LockConnection(bare_dsn, "poisonguard_test")
    locks.prepare(bare_dsn)

    settings = {
        setting: locks._connection.execute(f"SHOW {setting}").fetchone()
        for setting in (*SERVER_SETTINGS, "synchronous_commit")
    }
    parameters = locks._connection.info.get_parameters()
    locks.close()

    assert settings == {
        "tcp_keepalives_idle": ("5",),
        "tcp_keepalives_interval": ("2",),
        "tcp_keepalives_count": ("3",),
        "tcp_user_timeout": ("11000",),
        "lock_timeout": ("1s",),
        "statement_timeout": ("5s",),
        "default_transaction_isolation": ("read committed",),
        "synchronous_commit": ("on",),
    }
    assert CLIENT_SETTINGS.items() <= parameters.items()
    assert parameters["client_encoding"] == "UTF8"


def test_a_silent_connection_ends_no_wait_late_and_is_lost(
    dsn: str, stage: PostgresLockStage, resource: str
) -> None:
    proxy = LinkProxy(port_of(dsn))
    lock = ResourceLock(
        resource, PostgresLocks(through(dsn, proxy.port), look_every=0.1)
    )
    assert lock.acquire()

    proxy.silence()
    began = time.monotonic()
    outcomes: list[object] = []

    def wait() -> None:
        try:
            outcomes.append(lock.acquire(0.1))
        except Away as error:
            outcomes.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(PATIENCE)
    waited = time.monotonic() - began
    is_lost = lock.lost
    proxy.cut()

    assert outcomes == [None]
    assert waited < PATIENCE / 2
    assert is_lost
    assert lock.release() is False
    lock.destroy()
    proxy.close()


def test_a_child_leaves_the_session_to_its_parent_who_has_the_grant_only(
    dsn: str, resource: str, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    process = FORKS.Process(
        target=lock_contender.fork_with_grant, args=(dsn, resource, str(answer))
    )

    process.start()
    process.join(PATIENCE)
    process.kill()  # where it hangs
    process.join()

    assert process.exitcode == 0
    # The child's grant is lost; the parent's is not, whatever the child does with it.
    assert answer.read_text() == "True False False True"


def test_a_close_ends_a_session_that_is_not_ready_yet(dsn: str) -> None:
    proxy = LinkProxy(port_of(dsn))
    proxy.silence_after(b"pg_backend_pid")
    server = PostgresLocks(through(dsn, proxy.port))
    wait = server.attempt("invoices")
    wait_until(lambda: proxy.swallowed)

    queues = server._queues
    assert queues is not None
    server.close()

    with pytest.raises(Away, match="has been closed"):
        wait.wait(PATIENCE)
    queues._thread.join(PATIENCE)
    assert not queues._thread.is_alive()
    proxy.close()


def test_a_new_session_follows_one_that_ended_in_idleness(
    dsn: str, stage: PostgresLockStage, resource: str
) -> None:
    server = PostgresLocks(dsn)
    lock = ResourceLock(resource, server)
    with lock:
        pass
    stage.end_session(server)
    wait_until(lambda: server._queues is not None and server._queues.has_ended)

    with lock as grant:
        assert grant.fence == 2
    lock.destroy()


# What is refused


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_an_unusable_look_every_is_refused(dsn: str, seconds: float) -> None:
    with pytest.raises(Misconfigured, match="look_every"):
        PostgresLocks(dsn, look_every=seconds)


@pytest.mark.parametrize("conninfo", ["nonsense", "colour=red"])
def test_a_malformed_conninfo_is_refused(conninfo: str) -> None:
    with pytest.raises(Misconfigured, match="conninfo"):
        ResourceLock("invoices", PostgresLocks(conninfo)).acquire(PATIENCE)


def test_missing_tables_are_told_with_their_remedy(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn) as connection:
        connection.execute("DROP TABLE poisonguard_lock_tickets")

    with pytest.raises(Misconfigured, match=r"tables are missing.*schema\(\)"):
        ResourceLock("invoices", PostgresLocks(bare_dsn)).acquire()


def test_a_role_without_rights_is_told_which_it_needs(bare_dsn: str) -> None:
    role = f"locks_{uuid4().hex}"
    with psycopg.connect(bare_dsn) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        connection.execute(f"GRANT SELECT, INSERT ON {TABLES} TO {role}")
    address = urlsplit(bare_dsn)
    place = f"{role}:secret@{address.hostname}:{address.port}"
    theirs = address._replace(netloc=place).geturl()

    try:
        with pytest.raises(Misconfigured, match="grant SELECT, INSERT, UPDATE and DEL"):
            ResourceLock("invoices", PostgresLocks(theirs)).acquire()
    finally:
        with psycopg.connect(bare_dsn) as connection:
            connection.execute(f"REVOKE ALL ON {TABLES} FROM {role}")
            connection.execute(f"DROP ROLE {role}")


@pytest.mark.needs("pgbouncer")
@pytest.mark.parametrize(
    ("mode", "pool_size"), [("transaction", 1), ("transaction", 5), ("statement", 5)]
)
def test_a_pool_of_transactions_is_refused(
    dsn: str, tmp_path: Path, mode: str, pool_size: int
) -> None:
    with (
        pgbouncer.running(tmp_path, dsn, mode=mode, pool_size=pool_size) as url,
        pytest.raises(Misconfigured, match="pool_mode = session"),
    ):
        ResourceLock("invoices", PostgresLocks(url)).acquire(PATIENCE)


@pytest.mark.needs("pgbouncer")
def test_a_pool_of_sessions_is_as_good_as_postgres(
    dsn: str, tmp_path: Path, resource: str
) -> None:
    with pgbouncer.running(tmp_path, dsn, mode="session") as url:
        lock = ResourceLock(resource, PostgresLocks(url, look_every=FAR_AWAY))
        grant = lock.acquire(PATIENCE)
        waiting = PostgresLocks(url, look_every=FAR_AWAY)
        wait = waiting.attempt(resource)
        lock.release()

        assert grant is not None
        assert wait.wait(PATIENCE)
        waiting.close()
        lock.destroy()
