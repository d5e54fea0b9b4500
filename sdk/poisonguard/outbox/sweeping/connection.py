"""The sweeper's one connection to the producer's database.

Each statement is a transaction by itself, so none is open while messages are sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from poisonguard.locks.postgres_connection import (
    CLIENT_SETTINGS,
    ENCODING,
    cut_connection,
)
from poisonguard.outbox.sweeping.psycopg_import import conninfo_to_dict, pq, psycopg
from poisonguard.outbox.sweeping.settings import SweeperSettings
from poisonguard.outbox.sweeping.table_names import Tables

Connection = psycopg.Connection[Any]
Connect = Callable[[], Connection]
Values = Mapping[str, Any]

# Set by a statement: poolers refuse or ignore options of the connection.
SET = """
SELECT set_config(name, value, false)
FROM unnest(%(names)s::text[], %(texts)s::text[]) AS setting (name, value)
"""
# A statement that has no answer by then, after its own time-out, never gets one.
SILENCE_SECONDS = 10.0


def connecting_to(conninfo: str) -> Connect:
    """Return a function that connects a sweeper to the database of a conninfo."""
    settings: dict[str, Any] = {
        **CLIENT_SETTINGS,
        "application_name": "poisonguard sweeper",
        **conninfo_to_dict(conninfo),
        **ENCODING,
    }
    # A prepared statement would be planned without a look at its arrays.
    return partial(
        psycopg.connect, "", autocommit=True, prepare_threshold=None, **settings
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a raw answer: its type, and how to get the bytes of each row."""

    oid: int
    values: Sequence[bytes | None]


class OutboxConnection:
    """Run statements; closed for good after an error of the connection."""

    def __init__(self, connect: Connect, settings: SweeperSettings) -> None:
        self._tables = Tables(settings.schema)
        self._connection = connect()
        self._watch = AnswerWatch(
            settings.statement_seconds + SILENCE_SECONDS,
            partial(cut_connection, self._connection),
        )
        texts = {
            "lock_timeout": str(int(settings.lock_seconds * 1000)),
            "statement_timeout": str(int(settings.statement_seconds * 1000)),
            "datestyle": "ISO",  # psycopg reads no other
        }
        try:
            self.execute(SET, {"names": [*texts], "texts": [*texts.values()]})
        except BaseException:
            self.close()
            raise

    @property
    def outbox_table(self) -> str:
        """Return the outbox table's name, as Postgres takes it for a regclass."""
        return self._tables.outbox

    @property
    def is_usable(self) -> bool:
        """Tell whether the sweeper's connection can run a statement by itself."""
        connection = self._connection
        is_idle = connection.info.transaction_status == pq.TransactionStatus.IDLE
        return not connection.closed and is_idle

    @property
    def is_pooled(self) -> bool:
        """Tell whether a pooler such as PgBouncer stands before an outbox's Postgres.

        Its key is its own: it names another pid than Postgres does.
        """
        ((pid,),) = self.execute("SELECT pg_backend_pid()")
        return bool(pid != self._connection.info.backend_pid)

    def execute(self, statement: str, values: Values | None = None) -> list[Any]:
        """Run an SQL statement on an outbox; return its rows as Python values."""
        with self._watch:
            cursor = self._connection.execute(
                self._tables.fill(statement), values or {}
            )
            return cursor.fetchall() if cursor.description else []

    def execute_within(self, seconds: float, statement: str) -> list[Any]:
        """Run an SQL statement on an outbox under a time-out of its own.

        Return its rows.
        """
        try:
            with self._watch, self._connection.transaction():
                self._connection.execute(
                    "SELECT set_config('statement_timeout', %(most)s, true)",
                    {"most": str(int(seconds * 1000))},
                )
                cursor = self._connection.execute(self._tables.fill(statement), {})
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error:
            raise
        except BaseException:
            # What fails before BEGIN leaves psycopg's count of transactions wrong.
            self.close()
            raise

    def columns(self, statement: str, values: Values) -> list[Column]:
        """Run an SQL statement; return its columns as bytes that Postgres sent.

        So a value that has no Python equivalent harms only its own row.
        """
        with self._watch:
            cursor = self._connection.execute(
                self._tables.fill(statement), values, binary=True
            )
        result = cursor.pgresult
        if result is None:
            return []
        rows = range(result.ntuples)
        return [
            Column(result.ftype(place), [result.get_value(row, place) for row in rows])
            for place in range(result.nfields)
        ]

    def close(self) -> None:
        """Close the connection to an outbox's database; twice does no harm."""
        self._watch.close()
        self._connection.close()


class AnswerWatch:
    """Cut a connection whose server has not answered for too long.

    A frozen server keeps a connection alive, and no time-out of its own runs.
    """

    def __init__(self, seconds: float, cut: Callable[[], None]) -> None:
        self._seconds = seconds
        self._cut = cut
        self._since: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="poisonguard sweeper watch", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._since = None

    def close(self) -> None:
        """End the thread that watches for Postgres's answers to the sweeper."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(min(1.0, self._seconds / 4)):
            since = self._since
            if since is not None and time.monotonic() - since > self._seconds:
                self._cut()
