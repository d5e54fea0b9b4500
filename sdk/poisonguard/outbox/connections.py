"""Connections of an application, each used through the library that made it.

`connection_of` takes one of psycopg 3 or 2, of Django, or a connection or session of
SQLAlchemy 2; none of these libraries is imported here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from poisonguard.errors import Misconfigured

Row = tuple[Any, ...]

# As psycopg numbers the states of a transaction: active, open, or failed.
OPEN = frozenset({1, 2, 3})
NO_TABLE, NO_COLUMN, NO_RIGHT = "42P01", "42703", "42501"
ADVICE = {
    NO_TABLE: "its tables are missing in this schema: run the SQL that"
    " poisonguard.outbox.postgres_schema.schema() returns",
    NO_COLUMN: "its tables were altered, or are those of another release: run the SQL"
    " that poisonguard.outbox.postgres_schema.schema() returns",
    NO_RIGHT: "the role lacks a right: grant it INSERT on poisonguard_outbox, and"
    " SELECT on it and on poisonguard_outbox_figures",
}


class ProducerConnection(Protocol):
    """What an outbox needs of a connection."""

    def fetch(self, statement: str, *values: object) -> list[Row]:
        """Execute an SQL statement in the open transaction; return its rows."""

    def is_in_transaction(self) -> bool:
        """Tell whether the application has a transaction open."""

    def commit(self) -> None:
        """Commit what `fetch` began on a connection that does not commit by itself."""

    def rollback(self) -> None:
        """Roll back the producer's transaction that `fetch` began."""

    def identity(self) -> tuple[object, ...]:
        """Return what tells this database, as this role sees it, from others."""


def connection_of(connection: Any) -> ProducerConnection:
    """Wrap an application's database connection; raise Misconfigured for others."""
    if hasattr(connection, "__aenter__") and not hasattr(connection, "__enter__"):
        raise Misconfigured(
            f"Outbox: {type(connection).__name__} is asynchronous: give a synchronous"
            " connection; of SQLAlchemy, the one that its run_sync() gives."
        )
    for fits, kind in KINDS:
        if fits(connection):
            return kind(connection)
    raise Misconfigured(
        f"Outbox: {connection!r:.80} is no connection of psycopg or Django, nor one of"
        " SQLAlchemy or a session of it: give the one whose transaction the message"
        " belongs to; a pool or an engine lends it."
    )


@contextmanager
def own_transaction(connection: ProducerConnection) -> Iterator[None]:
    """Commit what the block executes; roll it back if the block raises.

    This holds also for a connection that does not commit by itself.
    """
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


class PsycopgConnection:
    """A connection of psycopg."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._has_row_factory = hasattr(connection, "row_factory")  # psycopg 3

    def fetch(self, statement: str, *values: object) -> list[Row]:
        cursor = self._connection.cursor()
        try:
            if self._has_row_factory:
                cursor.row_factory = _make_tuples
            cursor.execute(statement, values)
            return [_as_tuple(row) for row in cursor.fetchall()]
        except Exception as error:
            if (advice := explain(error)) is error:
                raise
            raise advice from error
        finally:
            cursor.close()

    def is_in_transaction(self) -> bool:
        return self._connection.info.transaction_status in OPEN

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def identity(self) -> tuple[object, ...]:
        return identity_of(self._connection)


class DjangoConnection:
    """A connection of Django, which begins and ends transactions by `atomic`."""

    def __init__(self, connection: Any) -> None:
        if connection.vendor != "postgresql":
            raise Misconfigured(
                f"Outbox: the connection {connection.alias!r} of Django is one of"
                f" {connection.vendor}: an outbox is a table of Postgres."
            )
        self._connection = connection

    def fetch(self, statement: str, *values: object) -> list[Row]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, values)
                return [*cursor.fetchall()]
        except Exception as error:
            if (advice := explain(error)) is error:
                raise
            raise advice from error

    def is_in_transaction(self) -> bool:
        if self._connection.in_atomic_block:
            return True
        inner = self._connection.connection  # None until the first statement
        return inner is not None and PsycopgConnection(inner).is_in_transaction()

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def identity(self) -> tuple[object, ...]:
        self._connection.ensure_connection()
        return identity_of(self._connection.connection)


class SqlAlchemyConnection:
    """A connection of SQLAlchemy.

    Statements go through it: what its driver executes alone would not begin the
    transaction that its `commit` ends.
    """

    def __init__(self, connection: Any) -> None:
        if not connection.dialect.driver.startswith("psycopg"):
            raise Misconfigured(
                f"Outbox: the connection uses {connection.dialect.driver}: give one"
                " whose engine uses psycopg or psycopg2."
            )
        self._connection = connection

    def fetch(self, statement: str, *values: object) -> list[Row]:
        try:
            result = self._connection.exec_driver_sql(statement, values)
            return [tuple(row) for row in result.fetchall()]
        except Exception as error:
            if (advice := explain(error)) is error:
                raise
            raise advice from error

    def is_in_transaction(self) -> bool:
        return bool(self._connection.in_transaction())

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def identity(self) -> tuple[object, ...]:
        return identity_of(self._connection.connection.dbapi_connection)


class SqlAlchemySession:
    """A session of SQLAlchemy, which begins a transaction of its connection.

    Of a scoped session it is the one of this thread.
    """

    def __init__(self, session: Any) -> None:
        self._session = session() if hasattr(session, "registry") else session

    @property
    def _connection(self) -> SqlAlchemyConnection:
        return SqlAlchemyConnection(self._session.connection())

    def fetch(self, statement: str, *values: object) -> list[Row]:
        return self._connection.fetch(statement, *values)

    def is_in_transaction(self) -> bool:
        """Tell whether the SQLAlchemy session has begun or joined a transaction.

        The transaction is open still.
        """
        bind = self._session.get_bind()
        is_joined = hasattr(bind, "in_transaction") and bind.in_transaction()
        return bool(self._session.in_transaction() or is_joined)

    def commit(self) -> None:
        self._session.commit()

    def rollback(self) -> None:
        self._session.rollback()

    def identity(self) -> tuple[object, ...]:
        return self._connection.identity()


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda connection: all(hasattr(connection, name) for name in names)


KINDS: Sequence[tuple[Callable[[Any], bool], Callable[[Any], ProducerConnection]]] = (
    (_has("in_atomic_block", "vendor", "cursor"), DjangoConnection),
    (_has("exec_driver_sql", "in_transaction"), SqlAlchemyConnection),
    (_has("get_bind", "connection", "begin_nested"), SqlAlchemySession),
    (_has("cursor", "info", "autocommit"), PsycopgConnection),
)


def identity_of(connection: Any) -> tuple[object, ...]:
    """Return what tells the database of a connection of psycopg from others."""
    info = connection.info
    return info.host, info.port, info.dbname, info.user, info.options


def explain(error: Exception) -> Exception:
    """Turn an error of Postgres about outbox tables into one with a remedy.

    Return any other error as it is.
    """
    codes = [getattr(each, name, None) for each, name in _sources(error)]
    for code, advice in ADVICE.items():
        if code in codes:
            return Misconfigured(f"Outbox: {advice}: {error}")
    return error


def _sources(error: Exception) -> Iterator[tuple[object, str]]:
    """Yield an error and its causes: Django and SQLAlchemy wrap Postgres's errors."""
    errors = (error, error.__cause__, getattr(error, "orig", None))
    return itertools.product(errors, ("sqlstate", "pgcode"))  # of psycopg 3 and 2


def _make_tuples(_cursor: object) -> Callable[[Sequence[Any]], Row]:
    """Return psycopg 3's row factory that makes tuples."""
    return tuple


def _as_tuple(row: Any) -> Row:
    """Return a row of psycopg 2 as a tuple; some of its cursors give dictionaries."""
    if type(row) is tuple:
        return row
    return tuple(row.values() if isinstance(row, Mapping) else row)
