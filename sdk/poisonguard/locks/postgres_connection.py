"""The one session of a process in Postgres, and the statements of its lock queues.

Each statement is a transaction by itself, and none waits for another holder. A ticket
is alive while the session of its holder has the ticket's advisory lock.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as missing:
    raise ImportError(
        "poisonguard.locks.postgres needs psycopg: pip install 'poisonguard[postgres]'"
    ) from missing

from poisonguard.errors import Away, GuardError, Misconfigured
from poisonguard.locks.lock_server import ANSWER_SECONDS

# How soon each side notices that the other one is out of reach.
CLIENT_SETTINGS = {
    "application_name": "poisonguard locks",
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "11000",
}
# Names also come with notifications, in the encoding of the connection.
ENCODING = {"client_encoding": "UTF8"}
# Set by statements: poolers refuse or ignore options of the connection.
SERVER_SETTINGS = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "11000",
    "lock_timeout": "1000",
    "statement_timeout": "5000",
    "default_transaction_isolation": "read committed",
}
SET = """
SELECT set_config(name, value, false)
FROM unnest(%s::text[], %s::text[]) AS setting (name, value)
"""
# Otherwise the last tickets could be given a second time after a crash of Postgres.
SET_DURABLE = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'
"""
READ_PID = "SELECT pg_backend_pid()"
CHECK_TABLES = """
SELECT has_table_privilege('poisonguard_lock_resources', p)
   AND has_table_privilege('poisonguard_lock_tickets', p)
FROM unnest('{select,insert,update,delete}'::text[]) AS p
"""
# The table is in it: another schema of the database has tickets of its own.
KEY = (
    "hashtextextended({0}.resource || ' poisonguard ' || {0}.number,"
    " 'poisonguard_lock_tickets'::regclass::oid::bigint)"
)
# The row of the resource is locked until the commit. So numbers become visible in their
# order, each with its advisory lock: who sees a ticket sees all lower ones as well.
TAKE = f"""
WITH resource AS (
    INSERT INTO poisonguard_lock_resources AS known (name) VALUES (%s)
    ON CONFLICT (name) DO UPDATE SET last_ticket = known.last_ticket + 1
    RETURNING name, last_ticket
), ticket AS (
    INSERT INTO poisonguard_lock_tickets (resource, number, session)
    SELECT name, last_ticket, %s FROM resource RETURNING resource, number
)
SELECT pg_backend_pid(), number, pg_try_advisory_lock({KEY.format("ticket")})
FROM ticket
"""  # noqa: S608 - made of constants
# A lock that this session already has would be granted again: its own tickets live.
LOOK = f"""
SELECT pg_backend_pid(), mine.resource, mine.number, earlier.number,
    CASE WHEN earlier.session <> %s
         THEN pg_try_advisory_xact_lock_shared({KEY.format("earlier")})
         ELSE false END
FROM unnest(%s::text[], %s::bigint[]) AS mine (resource, number)
LEFT JOIN LATERAL (
    SELECT resource, number, session FROM poisonguard_lock_tickets AS ticket
    WHERE ticket.resource = mine.resource AND ticket.number < mine.number
    ORDER BY number DESC LIMIT 1
) AS earlier ON true
"""  # noqa: S608
FORGET = """
DELETE FROM poisonguard_lock_tickets AS ticket
USING unnest(%s::text[], %s::bigint[]) AS dead (resource, number)
WHERE (ticket.resource, ticket.number) = (dead.resource, dead.number)
"""
# A crash may undo this: the session has ended then, and the ticket is dead anyway.
HASTILY = "set_config('synchronous_commit', 'off', true)"
RELEASE = f"""
DELETE FROM poisonguard_lock_tickets WHERE resource = %s AND number = %s
RETURNING pg_backend_pid(), {HASTILY}
"""  # noqa: S608
# A statement of its own, which sees every ticket that did not see the deletion. The
# advisory lock goes after the row: else a waiter would take the row for dead, and wait
# for the commit of its deletion.
CALL_NEXT = f"""
SELECT pg_backend_pid(), pg_advisory_unlock({KEY.format("mine")}), {HASTILY},
    CASE WHEN next.session <> %s THEN pg_notify(next.session, mine.resource) END
FROM (VALUES (%s::text, %s::bigint)) AS mine (resource, number)
LEFT JOIN LATERAL (
    SELECT session FROM poisonguard_lock_tickets AS ticket
    WHERE ticket.resource = mine.resource AND ticket.number > mine.number
    ORDER BY number LIMIT 1
) AS next ON true
"""  # noqa: S608
PROBES = 3
NO_TABLE = (
    "PostgresLocks: {}: run the SQL that poisonguard.locks.postgres.schema() returns,"
    " and grant SELECT, INSERT, UPDATE and DELETE on its tables."
)
POOLED = (
    "PostgresLocks: a pooler gives the statements of this connection to several"
    " sessions of Postgres, so a lock would belong to all of them: connect to Postgres"
    " itself, or to a pool with pool_mode = session."
)


class Ticket(NamedTuple):
    """A place in the queue of a resource; its number is the fence of its holder."""

    resource: str
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTicket:
    """What stands next before a ticket: None, or a ticket that lives or is dead."""

    of: Ticket
    earlier: Ticket | None
    is_dead: bool


class LockConnection:
    """The session; only one thread may use it, but any may `abort` it."""

    def __init__(self, conninfo: str, name: str) -> None:
        self.name = name
        try:
            self._connection = _connect(conninfo)
        except psycopg.ProgrammingError as error:
            raise Misconfigured(f"PostgresLocks: the conninfo: {error}") from error
        except psycopg.Error as error:
            raise Away(f"Postgres cannot be reached: {error}") from error
        self.answered_at = time.monotonic()
        self._pid = 0
        self._calls: set[str] = set()

    def prepare(self, conninfo: str) -> None:
        """Make a connection a session for locks; raise Misconfigured if it cannot."""
        try:
            self._prepare(conninfo)
        except psycopg.Error as error:
            raise _explain(error) from error

    def fileno(self) -> int:
        return self._connection.fileno()

    def take(self, resource: str) -> Ticket | None:
        """Take a resource's next ticket; None if its queue was locked too long.

        DataError and OutOfMemory leave the session as it was: there is no ticket, and
        the advisory lock, which outlives a rollback, is what the statement gets last.
        """
        try:
            ((number, is_locked),) = self._query(TAKE, resource, self.name)
        except psycopg.errors.LockNotAvailable:
            return None
        if not is_locked:
            raise Away(f"The ticket {number} of {resource!r} is not free.")
        return Ticket(resource, number)

    def look(self, tickets: Iterable[Ticket]) -> list[EarlierTicket]:
        """Return, for each of our lock tickets, the one next before it, if any.

        That one is marked as dead if its session has ended.
        """
        rows = self._query(LOOK, self.name, *_columns(tickets))
        return [
            EarlierTicket(
                of=Ticket(resource, number),
                earlier=None if earlier is None else Ticket(resource, earlier),
                is_dead=is_dead,
            )
            for resource, number, earlier, is_dead in rows
        ]

    def forget(self, dead: Iterable[Ticket]) -> bool:
        """Delete lock tickets whose sessions have ended; False if they stay locked."""
        try:
            self._connection.execute(FORGET, _columns(dead))
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.DeadlockDetected,
        ):
            return False
        finally:
            self.answered_at = time.monotonic()
        return True

    def release(self, ticket: Ticket) -> bool:
        """Delete our ticket for a lock, and notify the session of the next ticket.

        Return False if ours, or its advisory lock, was gone already.
        """
        rows = self._query(RELEASE, *ticket)
        ((was_locked, *_),) = self._query(CALL_NEXT, self.name, *ticket)
        return bool(rows) and bool(was_locked)

    def ping(self) -> None:
        self._query(READ_PID)

    @property
    def has_calls(self) -> bool:
        """Tell whether `called_resources` has notifications for our lock tickets."""
        return bool(self._calls)

    def called_resources(self) -> set[str]:
        """Read from notifications the resources whose lock our ticket may now get."""
        self._connection.pgconn.consume_input()
        while notify := self._connection.pgconn.notifies():
            self._calls.add(notify.extra.decode())
        calls, self._calls = self._calls, set()
        return calls

    def abort(self) -> None:
        """Cut the locks' connection, also where a thread waits for an answer."""
        cut_connection(self._connection)

    def close(self) -> None:
        self._connection.close()

    def leave_to_parent(self) -> None:
        """Close our copy of the socket in a forked child, silent to Postgres.

        Otherwise the session would outlive a parent that dies.
        """
        with suppress(psycopg.Error, OSError):
            os.close(self._connection.fileno())

    def _prepare(self, conninfo: str) -> None:
        self._pid = _read_pid(self._connection)
        # Poolers give keys of their own.
        if self._pid != self._connection.info.backend_pid:
            self._refuse_shared_sessions(conninfo)
        settings = ([*SERVER_SETTINGS], [*SERVER_SETTINGS.values()])
        self._connection.execute(SET, settings)
        self._connection.execute(SET_DURABLE)
        if (False,) in self._connection.execute(CHECK_TABLES).fetchall():
            raise Misconfigured(NO_TABLE.format("its role lacks a right"))
        self._connection.add_notify_handler(
            lambda notify: self._calls.add(notify.payload)
        )
        self._connection.execute(f'LISTEN "{self.name}"')

    def _refuse_shared_sessions(self, conninfo: str) -> None:
        """Raise Misconfigured if another connection is given our session of Postgres.

        A transaction of a second connection gets what was used last: ours, where
        sessions are shared. Where each has its own, the second one may find none free.
        """
        for _ in range(PROBES):
            with suppress(psycopg.OperationalError), _connect(conninfo) as other:
                timer = threading.Timer(ANSWER_SECONDS, cut_connection, [other])
                timer.start()
                try:
                    with other.transaction():
                        their_pid = _read_pid(other)
                finally:
                    timer.cancel()
                if their_pid == self._pid:
                    raise Misconfigured(POOLED)
            if _read_pid(self._connection) != self._pid:
                raise Misconfigured(POOLED)

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a lock statement; return its rows without the session's column.

        That is the first column. Raise Misconfigured if it names another session.
        """
        rows = self._connection.execute(statement, values).fetchall()
        self.answered_at = time.monotonic()
        if any(row[0] != self._pid for row in rows):
            raise Misconfigured(POOLED)
        return [row[1:] for row in rows]


def _connect(conninfo: str) -> psycopg.Connection[tuple[Any, ...]]:
    settings: dict[str, Any] = {
        **CLIENT_SETTINGS,
        **conninfo_to_dict(conninfo),
        **ENCODING,
    }
    return psycopg.connect("", autocommit=True, **settings)


def _read_pid(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    (pid,), *_ = connection.execute(READ_PID, prepare=False).fetchall()
    return int(pid)


def cut_connection(connection: psycopg.Connection[Any]) -> None:
    """Break a Postgres connection from any thread, also while another waits."""
    with (
        suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as link,
    ):
        link.shutdown(socket.SHUT_RDWR)


def _columns(tickets: Iterable[Ticket]) -> Sequence[list[Any]]:
    listed = list(tickets)
    return [ticket.resource for ticket in listed], [each.number for each in listed]


def _explain(error: psycopg.Error) -> GuardError:
    if isinstance(error, psycopg.errors.UndefinedTable):
        return Misconfigured(NO_TABLE.format("its tables are missing"))
    return Away(f"Postgres does not answer: {error}")
