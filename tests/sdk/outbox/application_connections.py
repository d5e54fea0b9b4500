"""An application's connection, of any library that an outbox can use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import psycopg2
import psycopg2.extras
import sqlalchemy
from django.db.utils import ConnectionHandler
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

OPEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""


class OutboxCaller(ABC):
    """`connection` is what the application gives to its outbox."""

    def __init__(self, connection: Any, *, commits_by_itself: bool = False) -> None:
        self.connection = connection
        self.commits_by_itself = commits_by_itself

    @abstractmethod
    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute an SQL statement as the application does."""

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    @abstractmethod
    def begin(self) -> AbstractContextManager[object]:
        """Begin a transaction of the application; the block's end commits it."""

    @abstractmethod
    def begin_savepoint(self) -> AbstractContextManager[object]:
        """Begin a part of a transaction, which an error rolls back."""


class Psycopg3Caller(OutboxCaller):
    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def begin(self) -> AbstractContextManager[object]:
        transaction: AbstractContextManager[object] = self.connection.transaction()
        return transaction

    begin_savepoint = begin


class SavepointsByStatements(OutboxCaller):
    """Begins and ends savepoints by statements of its own."""

    @contextmanager
    def begin_savepoint(self) -> Iterator[None]:
        self.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK TO SAVEPOINT part")
            raise
        self.execute("RELEASE SAVEPOINT part")


class Psycopg2Caller(SavepointsByStatements):
    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            if not cursor.description:
                return []
            return [
                tuple(row.values() if isinstance(row, dict) else row)
                for row in cursor.fetchall()
            ]

    def begin(self) -> AbstractContextManager[object]:
        """Begin by the connection itself: also one with autocommit has one then."""
        connection: AbstractContextManager[object] = self.connection
        return connection


class SqlAlchemyCaller(OutboxCaller):
    """A connection or a session."""

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        result = self.connection.execute(sqlalchemy.text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    def begin(self) -> AbstractContextManager[object]:
        transaction: AbstractContextManager[object] = self.connection.begin()
        return transaction

    def begin_savepoint(self) -> AbstractContextManager[object]:
        savepoint: AbstractContextManager[object] = self.connection.begin_nested()
        return savepoint


class DjangoCaller(SavepointsByStatements):
    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return [*cursor.fetchall()] if cursor.description else []

    @contextmanager
    def begin(self) -> Iterator[None]:
        commits_by_itself = self.connection.get_autocommit()
        self.connection.set_autocommit(False)
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise
        else:
            self.connection.commit()
        finally:
            self.connection.set_autocommit(commits_by_itself)


Calling = Callable[[str], AbstractContextManager[OutboxCaller]]


def psycopg3(*, autocommit: bool) -> Calling:
    @contextmanager
    def calling(dsn: str) -> Iterator[OutboxCaller]:
        with closing(psycopg.connect(dsn, autocommit=autocommit)) as connection:
            yield Psycopg3Caller(connection, commits_by_itself=autocommit)

    return calling


def psycopg_2(*, autocommit: bool, rows: Any = None) -> Calling:
    @contextmanager
    def calling(dsn: str) -> Iterator[OutboxCaller]:
        with closing(psycopg2.connect(dsn, cursor_factory=rows)) as connection:
            connection.autocommit = autocommit
            yield Psycopg2Caller(connection, commits_by_itself=autocommit)

    return calling


def sqlalchemy_connection(library: str, *, autocommit: bool = False) -> Calling:
    @contextmanager
    def calling(dsn: str) -> Iterator[OutboxCaller]:
        with engine_of(dsn, library, autocommit=autocommit).connect() as connection:
            yield SqlAlchemyCaller(connection, commits_by_itself=autocommit)

    return calling


def sqlalchemy_session(library: str) -> Calling:
    @contextmanager
    def calling(dsn: str) -> Iterator[OutboxCaller]:
        with Session(engine_of(dsn, library)) as session:
            yield SqlAlchemyCaller(session)

    return calling


def engine_of(dsn: str, library: str, *, autocommit: bool = False) -> sqlalchemy.Engine:
    url = urlsplit(dsn)._replace(scheme=f"postgresql+{library}").geturl()
    options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    return sqlalchemy.create_engine(url, poolclass=NullPool, **options)


def django(*, autocommit: bool) -> Calling:
    @contextmanager
    def calling(dsn: str) -> Iterator[OutboxCaller]:
        address = urlsplit(dsn)
        handler = ConnectionHandler(
            {
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": address.path[1:],
                    "HOST": address.hostname,
                    "PORT": address.port,
                    "USER": address.username,
                    "PASSWORD": address.password,
                }
            }
        )
        connection = handler["default"]
        connection.set_autocommit(autocommit)
        with closing(connection):
            yield DjangoCaller(connection, commits_by_itself=autocommit)

    return calling


CALLERS: dict[str, Calling] = {
    "psycopg": psycopg3(autocommit=False),
    "psycopg, autocommit": psycopg3(autocommit=True),
    "psycopg2": psycopg_2(autocommit=False),
    "psycopg2, autocommit": psycopg_2(autocommit=True),
    "psycopg2, dict rows": psycopg_2(
        autocommit=False, rows=psycopg2.extras.RealDictCursor
    ),
    "psycopg2, list rows": psycopg_2(autocommit=False, rows=psycopg2.extras.DictCursor),
    "SQLAlchemy with psycopg": sqlalchemy_connection("psycopg"),
    "SQLAlchemy with psycopg2": sqlalchemy_connection("psycopg2"),
    "SQLAlchemy session with psycopg": sqlalchemy_session("psycopg"),
    "SQLAlchemy session with psycopg2": sqlalchemy_session("psycopg2"),
    "Django": django(autocommit=True),
    "Django, no autocommit": django(autocommit=False),
}

# Their transactions are so by name alone: Postgres begins none.
WITHOUT_TRANSACTIONS: dict[str, Calling] = {
    "SQLAlchemy with psycopg, autocommit": sqlalchemy_connection(
        "psycopg", autocommit=True
    ),
    "SQLAlchemy with psycopg2, autocommit": sqlalchemy_connection(
        "psycopg2", autocommit=True
    ),
}


def open_transactions(dsn: str) -> int:
    """Count transactions that applications have open and do not use just now."""
    with psycopg.connect(dsn) as connection:
        ((count,),) = connection.execute(OPEN).fetchall()
        return int(count)
