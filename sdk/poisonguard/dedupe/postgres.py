"""An exact window in the consumer's Postgres: mark and effect commit together.

    window = PostgresWindow(pool.connection)
    guard = Guard(..., dedupe=window)

    def handler(order):
        window.connection.execute("UPDATE accounts ...", ...)

It works with psycopg 3 or 2, alone or under Django or SQLAlchemy; none of them is
imported here. Create the table with the SQL that `schema()` returns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from hashlib import blake2b
from importlib import resources
from typing import TYPE_CHECKING, Any

from poisonguard.dedupe.once import Busy, Copy, Once, Unmarked, Window
from poisonguard.errors import Misconfigured
from poisonguard.readers import Reader

if TYPE_CHECKING:
    from poisonguard.handling.healthy_path import AsyncHandler

BATCH = 10_000
# The lock is tried, not waited for: waiting would hold a thread and a slot, and with
# batches two transactions could wait for each other.
MARK = """
WITH turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%s::bigint) AS is_ours),
mark AS (
    INSERT INTO poisonguard_marks (consumer_group, topic, key)
    SELECT %s::text, %s::text, %s::bytea FROM turn WHERE is_ours
    ON CONFLICT DO NOTHING RETURNING txid_current() AS transaction
)
SELECT CASE WHEN is_ours THEN coalesce((SELECT transaction FROM mark), -1) ELSE 0 END
FROM turn
"""
NOT_OURS, NOT_NEW = 0, -1  # in place of the number of the transaction
# Messages without an id are handled in a transaction, too.
UNMARKED = "SELECT txid_current()"
FORGET = """
DELETE FROM poisonguard_marks WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM poisonguard_marks
    WHERE marked_at < now() - make_interval(secs => %s)
    ORDER BY marked_at LIMIT %s FOR UPDATE SKIP LOCKED
))
"""
# As psycopg numbers the states of a transaction.
IDLE, IN_TRANSACTION = 0, 2
NO_TABLE = "42P01"
LAST_TRANSACTIONS = 1_000


def schema() -> str:
    """Return the SQL that creates the table of the dedupe window, if missing."""
    return resources.files(__package__).joinpath("postgres.sql").read_text()


class PostgresWindow(Window):
    """Mark handled messages in the transaction that `begin` starts.

    `begin()` returns a context manager that starts a transaction, commits it at the end
    of its block, and rolls it back when the block raises. What it yields is
    `connection` in the handler; where it yields nothing, as Django's `atomic`, pass the
    connection. For `async def` handlers it must be asynchronous. With `nested`, the
    transaction may be part of a larger one, which the caller commits before it settles
    the message. For `by_bookmark` see `MemoryWindow`.
    """

    def __init__(
        self,
        begin: Callable[[], Any],
        *,
        connection: Any = None,
        nested: bool = False,
        by_bookmark: bool = False,
    ) -> None:
        if not callable(begin):
            raise Misconfigured(
                f"PostgresWindow: begin is {begin!r}: give what begins a transaction,"
                " such as pool.connection."
            )
        self.begin = begin
        self.nested = nested
        self.by_bookmark = by_bookmark
        self._ambient = connection
        self._current: ContextVar[Any] = ContextVar("connection", default=None)
        self.is_used = connection is not None

    @property
    def connection(self) -> Any:
        """Return the connection of this handler's dedupe transaction.

        Raise Misconfigured outside a handler.
        """
        connection = self._current.get()
        if connection is None:
            raise Misconfigured(
                "PostgresWindow: there is a connection only in a handler, on its own"
                " thread and in its tasks."
            )
        self.is_used = True
        return connection

    def forget(self, older_than: timedelta, *, batch: int = BATCH) -> int:
        """Delete older marks of messages; later copies are handled again.

        Each batch is a transaction of its own. Return the number of deleted marks.
        """
        limits, total = _forget_parameters(older_than, batch), 0
        while True:
            with self.begin() as handle:
                cursor = _cursor(self.connection_of(handle))
                cursor.execute(FORGET, limits)
                number = int(cursor.rowcount)
                cursor.close()
            total += number
            if number < batch:
                return total

    async def forget_async(self, older_than: timedelta, *, batch: int = BATCH) -> int:
        """Delete older marks of messages like `forget`, with an async `begin`."""
        limits, total = _forget_parameters(older_than, batch), 0
        while True:
            async with self.begin() as handle:
                cursor = _cursor(self.connection_of(handle))
                await cursor.execute(FORGET, limits)
                number = int(cursor.rowcount)
                await cursor.close()
            total += number
            if number < batch:
                return total

    def open(self, *, topic: str, consumer_group: str, reader: Reader) -> Once:
        """Return the `Once` of one guard in this dedupe window."""
        return PostgresOnce(reader, self, topic=topic, consumer_group=consumer_group)

    def connection_of(self, handle: Any) -> Any:
        """Return the database connection of what `begin` yielded."""
        if handle is None:
            handle = self._ambient
        if handle is None:
            raise Misconfigured(
                "PostgresWindow: begin gives no connection: pass it, as in"
                " PostgresWindow(transaction.atomic, connection=connection)."
            )
        if getattr(handle, "savepoint_name", None) and not self.nested:
            raise Misconfigured(_NESTED)
        # A psycopg transaction has neither, but a connection.
        is_usable = hasattr(handle, "execute") or hasattr(handle, "cursor")
        connection = handle if is_usable else getattr(handle, "connection", None)
        if connection is None:
            raise Misconfigured(_NOT_PSYCOPG)
        return connection

    @contextmanager
    def lend(self, connection: Any) -> Iterator[None]:
        """In the block, give the handler the dedupe transaction's connection."""
        token = self._current.set(connection)
        try:
            yield
        finally:
            self._current.reset(token)


class PostgresOnce(Once):
    """Use the marks that a consumer group has set in one database."""

    def __init__(
        self, reader: Reader, window: PostgresWindow, *, topic: str, consumer_group: str
    ) -> None:
        super().__init__(reader, by_bookmark=window.by_bookmark)
        self._window = window
        self._names = (consumer_group, topic)
        self._lock_hash = blake2b(repr(self._names).encode(), digest_size=8)
        self._trouble: list[str] = []

    def reset_after_fork(self) -> None:
        """Forget the dedupe window's running copies and transactions, the parent's."""
        super().reset_after_fork()
        self._transactions: OrderedDict[int, None] = OrderedDict()

    @property
    def warnings(self) -> list[str]:
        """List problems of the dedupe window with remedies, for `health()`."""
        warnings = [*super().warnings, *self._trouble]
        if self._transactions and not self._window.is_used:
            warnings.append(
                "No handler has asked for the connection of its PostgresWindow: what it"
                " does elsewhere is done again after a crash. Use window.connection."
            )
        return warnings

    def run(self, handler: Callable[[Any], object], message: Any) -> None:
        """Mark a message and run its handler in one transaction, or raise a NotRun.

        The handler's result is dropped.
        """
        key = self._key(message)
        with self._claim(key), self._judge_transaction() as attempt:
            manager = self._window.begin()
            if not hasattr(manager, "__enter__"):
                raise Misconfigured(_KIND.format("one", "with"))
            with manager as handle:
                connection = self._window.connection_of(handle)
                cursor = _cursor(connection)
                attempt.refuse_autocommit(cursor)
                cursor.execute(*self._mark_statement(key))
                attempt.read_mark(cursor.fetchone())
                with self._window.lend(connection):
                    handler(message)
                attempt.check_still_open()
                cursor.close()

    async def run_async(self, handler: AsyncHandler, message: Any) -> None:
        """Mark a message and await its handler in one transaction, or raise NotRun."""
        key = self._key(message)
        with self._claim(key), self._judge_transaction() as attempt:
            manager = self._window.begin()
            if not hasattr(manager, "__aenter__"):
                raise Misconfigured(_KIND.format("an asynchronous one", "async with"))
            async with manager as handle:
                connection = self._window.connection_of(handle)
                cursor = _cursor(connection)
                attempt.refuse_autocommit(cursor)
                await cursor.execute(*self._mark_statement(key))
                attempt.read_mark(await cursor.fetchone())
                with self._window.lend(connection):
                    await handler(message)
                attempt.check_still_open()
                await cursor.close()

    def _mark_statement(self, key: bytes | None) -> tuple[str, tuple[object, ...]]:
        """Return the SQL that sets a message's dedupe mark, and its parameters."""
        if key is None:
            return UNMARKED, ()
        turn = self._lock_hash.copy()
        turn.update(key)
        place = int.from_bytes(turn.digest(), "big", signed=True)
        return MARK, (place, *self._names, key)

    @contextmanager
    def _judge_transaction(self) -> Iterator[_Progress]:
        """Judge how the block that marks and handles a message ends.

        Yield its progress. Raise Unmarked where the dedupe window fails, and what the
        handler raises. Raise Misconfigured for a transaction that was rolled back on
        purpose.
        """
        attempt = _Progress(self)
        try:
            yield attempt
        except Exception as error:
            if attempt.transaction is not None:
                raise
            raise self._note_unmarked(_describe_error(error)) from error
        if attempt.transaction is None:
            raise self._note_unmarked("begin() let an exception of its block vanish")
        if not attempt.is_done:
            raise Misconfigured("The handler's transaction was rolled back on purpose.")
        self._note_committed(attempt.transaction)

    def _note_unmarked(self, reason: str) -> Unmarked:
        """Note why a message got no dedupe mark; return the Unmarked to raise."""
        self._trouble = [f"Messages are released, for they cannot be marked: {reason}"]
        return Unmarked(reason)

    def _note_committed(self, transaction: int) -> None:
        """Remember a handler's transaction among the last ones; forget the trouble."""
        with self._lock:
            self._trouble = []
            self._transactions[transaction] = None
            if len(self._transactions) > LAST_TRANSACTIONS:
                self._transactions.popitem(last=False)

    def is_open_still(self, transaction: int) -> bool:
        """Tell whether an earlier message's transaction is still open."""
        with self._lock:
            return transaction in self._transactions and not self._window.nested

    def count_copy(self) -> Copy:
        """Count a copy of a handled message; return the `Copy` to raise for it."""
        return self._counted_copy()


class _Progress:
    """The progress of a transaction; its number is set once the mark is."""

    def __init__(self, once: PostgresOnce) -> None:
        self._once = once
        self._cursor: Any = None
        self.transaction: int | None = None
        self.is_done = False

    def refuse_autocommit(self, cursor: Any) -> None:
        """Raise Misconfigured if the connection would commit the mark by itself.

        The mark says that a message was handled.
        """
        self._cursor = cursor
        if _transaction_status(cursor) == IDLE and cursor.connection.autocommit:
            raise Misconfigured(_AUTOCOMMIT)

    def read_mark(self, row: object) -> None:
        """Read the result of marking a message, and note its transaction.

        Raise Busy where a copy runs, Copy where one was handled, and Misconfigured
        where an earlier message's transaction is still open.
        """
        transaction = _single_value(row)
        if transaction == NOT_OURS:
            raise Busy
        if transaction == NOT_NEW:
            raise self._once.count_copy()
        if self._once.is_open_still(transaction):
            raise Misconfigured(_NESTED)
        self.transaction = transaction

    def check_still_open(self) -> None:
        """Raise Misconfigured if the handler's transaction failed or has ended."""
        if _transaction_status(self._cursor) != IN_TRANSACTION:
            raise Misconfigured(
                "PostgresWindow: the handler has returned with its transaction failed,"
                " or ended: let it raise what it caught, and neither commit nor roll"
                " back."
            )
        self.is_done = True


def _cursor(connection: Any) -> Any:
    """Create a psycopg cursor, also below SQLAlchemy's wrappers."""
    for _ in range(2):  # a session of SQLAlchemy, and its connection
        if not hasattr(connection, "cursor"):
            inner = getattr(connection, "connection", None)
            connection = inner() if callable(inner) else inner
    if not hasattr(connection, "cursor"):
        raise Misconfigured(_NOT_PSYCOPG)
    return connection.cursor()


def _single_value(row: object) -> int:
    """Return the one value of a database row, a tuple or a dictionary."""
    value = row
    if isinstance(row, Mapping):
        value = next(iter(row.values()))
    elif isinstance(row, Sequence):
        value = row[0]
    if type(value) is not int:
        raise Misconfigured(
            f"PostgresWindow: a row comes as {row!r}: give connections whose rows are"
            " tuples or dictionaries."
        )
    return value


def _transaction_status(cursor: Any) -> int:
    """Return the status of a connection's transaction, as psycopg numbers it."""
    try:
        return int(cursor.connection.info.transaction_status)
    except AttributeError:
        raise Misconfigured(_NOT_PSYCOPG) from None


def _forget_parameters(older_than: object, batch: int) -> tuple[float, int]:
    """Return the parameters of FORGET; raise Misconfigured for unusable ones."""
    if not isinstance(older_than, timedelta) or older_than <= timedelta():
        raise Misconfigured(
            f"PostgresWindow: older_than is {older_than!r}: give a timedelta, longer"
            " than copies may be late."
        )
    if type(batch) is not int or batch < 1:
        raise Misconfigured(f"PostgresWindow: batch is {batch!r}: give 1 or more.")
    return older_than.total_seconds(), batch


def _describe_error(error: Exception) -> str:
    """Describe an error of the dedupe database, with a remedy for a missing table."""
    errors = (error, error.__cause__)  # Django wraps the driver's errors
    names = ("sqlstate", "pgcode")  # of psycopg 3 and 2
    codes = [getattr(each, name, None) for each in errors for name in names]
    if NO_TABLE in codes:
        return "its table is missing: run poisonguard.dedupe.postgres.schema()"
    return f"{type(error).__name__}: {error}"


_AUTOCOMMIT = (
    "PostgresWindow: begin has begun no transaction, and the connection commits each"
    " statement by itself: give what begins one, such as connection.transaction."
)
_NESTED = (
    "PostgresWindow: begin has begun no transaction of its own, but a part of one that"
    " is open still: commit that before the next message, make the connection with"
    " autocommit=True, or say nested=True and commit before you settle."
)
_KIND = (
    "PostgresWindow: for this handler, begin has to return {} of the context managers:"
    " it is entered by `{}`."
)
_NOT_PSYCOPG = (
    "PostgresWindow: begin gives no connection of psycopg, nor one of Django or"
    " SQLAlchemy with psycopg behind it."
)
