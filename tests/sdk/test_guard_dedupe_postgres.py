"""The window in the consumer's Postgres: each effect is there once, or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from django.db import connection as django_connection
from django.db import transaction
from psycopg import rows
from psycopg_pool import ConnectionPool

from poisonguard import Guard, Misconfigured, Outcome, RetryPolicy
from poisonguard.dedupe.postgres import PostgresWindow, schema
from tests import preloaded_fork_server
from tests.database_removal import drop_database
from tests.sdk import postgres_dedupe_consumer
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.sdk.guard_and_handler_builders import Message, guarding, message, redriven

HANDLED, POISONED, RELEASE = Outcome.HANDLED, Outcome.POISONED, Outcome.RELEASE
SKIPPED = Outcome.SKIPPED
TIMEOUT = 60.0
FORKS = preloaded_fork_server.of(postgres_dedupe_consumer.__name__)
ADD = "INSERT INTO effects (message) VALUES (%s)"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Make a database of its own, with the tables of a consumer."""
    url, name = os.environ["DATABASE_URL"], f"window_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    dsn = urlsplit(url)._replace(path=f"/{name}").geturl()
    try:
        with psycopg.connect(dsn) as connection:
            connection.execute(schema())
            connection.execute(schema())  # a second time makes nothing new
            connection.execute(postgres_dedupe_consumer.EFFECTS)
        yield dsn
    finally:
        with psycopg.connect(url, autocommit=True) as server:
            drop_database(name, server)


@pytest.fixture
def dsn(database: str) -> str:
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE effects, poisonguard_marks")
    return database


def effects(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT message FROM effects ORDER BY message")
        return [message for (message,) in rows]


def marks(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        (number,), *_ = connection.execute("SELECT count(*) FROM poisonguard_marks")
        return int(number)


class Adding:
    """Has its effect in the transaction of its window, and raises what it is told."""

    def __init__(self, window: PostgresWindow, *errors: Exception | None) -> None:
        self._window = window
        self._errors = list(errors)
        self.calls: list[str] = []
        self.afterwards: Callable[[], object] = lambda: None

    def __call__(self, message: Message) -> None:
        self.calls.append(message["bookmark"])
        self._window.connection.execute(ADD, [message["message_id"]])
        self.afterwards()
        if self._errors and (error := self._errors.pop(0)):
            raise error


def copies(*bookmarks: str, message_id: str = "m-1") -> list[Message]:
    return [message(bookmark, message_id=message_id) for bookmark in bookmarks]


def connecting(dsn: str) -> PostgresWindow:
    @contextmanager
    def begin() -> Iterator[psycopg.Connection]:
        # psycopg leaves one open whose commit has failed.
        with closing(psycopg.connect(dsn)) as connection, connection:
            yield connection

    return PostgresWindow(begin)


# Exactly once


def test_a_copy_is_passed_over_by_any_consumer_of_the_group(
    server: FakeServer, dsn: str
) -> None:
    outcomes, calls = [], []
    health: dict[str, object] = {}
    for bookmark in ("b-1", "b-2"):
        window = connecting(dsn)
        handler = Adding(window)
        with guarding(server, dedupe=window) as guard:
            outcomes += [guard.handle(each, handler) for each in copies(bookmark)]
            health = guard.health()
        calls += handler.calls

    assert outcomes == [HANDLED, SKIPPED]
    assert (calls, effects(dsn), marks(dsn)) == (["b-1"], ["m-1"], 1)
    assert health["dedupe"] == {"duplicates": 1, "without_id": 0}


def test_groups_topics_and_redrives_are_told_apart(
    server: FakeServer, dsn: str
) -> None:
    window = connecting(dsn)
    handler = Adding(window)
    plain, again = message(message_id="m-1"), redriven("b-2", message_id="m-1")
    outcomes = []

    for wish in ({}, {"topic": "invoices"}, {"consumer_group": "audit"}, {}):
        with guarding(server, dedupe=window, **wish) as guard:
            outcomes.append(guard.handle(plain, handler))
    for _ in range(2):  # with a journal that knows of no redrive
        with guarding(server, dedupe=window) as guard:
            outcomes.append(guard.handle(again, handler))

    assert outcomes == [HANDLED, HANDLED, HANDLED, SKIPPED, HANDLED, SKIPPED]
    assert marks(dsn) == 4
    # The consumer may have died between its commit and its word.
    assert sum("/confirmations" in path for _, path, _ in server.requests) == 2


def test_without_an_id_a_message_is_handled_in_a_transaction_as_well(
    server: FakeServer, dsn: str
) -> None:
    window = connecting(dsn)
    handler = Adding(window, OSError("once"))

    with guarding(server, dedupe=window) as guard:
        outcomes = [guard.handle(message(message_id=None), handler) for _ in range(2)]
        health = guard.health()

    assert outcomes == [HANDLED, HANDLED]
    assert (len(effects(dsn)), marks(dsn)) == (2, 0)
    assert health["dedupe"] == {"duplicates": 0, "without_id": 3}


def test_a_message_that_fails_leaves_neither_effect_nor_mark(
    server: FakeServer, dsn: str
) -> None:
    window = connecting(dsn)
    handler = Adding(window, OSError("once"), None, ValueError(), ValueError())

    with guarding(server, dedupe=window) as guard:
        retried = guard.handle(message("b-1", message_id="m-1"), handler)
        poisoned = guard.handle(message("b-2", message_id="m-2"), handler)

    assert (retried, poisoned) == (HANDLED, POISONED)
    assert handler.calls == ["b-1", "b-1", "b-2", "b-2"]
    assert (effects(dsn), marks(dsn)) == (["m-1"], 1)


@pytest.mark.parametrize(
    ("error", "outcomes"),
    [(None, (HANDLED, SKIPPED)), (ValueError(), (POISONED, HANDLED))],
)
def test_a_copy_in_another_process_waits_for_the_first(
    server: FakeServer,
    dsn: str,
    error: Exception | None,
    outcomes: tuple[Outcome, Outcome],
) -> None:
    has_begun, may_end, waits = (threading.Event() for _ in range(3))
    window = connecting(dsn)
    slow, other = Adding(window, error), Adding(window)

    def stay() -> None:
        has_begun.set()
        assert may_end.wait(TIMEOUT)

    slow.afterwards = stay
    actual: list[Outcome] = []
    options: dict[str, Any] = {
        "dedupe": window,
        "hold_for": TIMEOUT,
        "policy": RetryPolicy(max_attempts=1),
    }

    # Two guards share neither claims nor counts of attempts, as two processes.
    with (
        guarding(server, **options) as one,
        guarding(server, keep_alive=lambda _: waits.set(), lease=0.1, **options) as two,
    ):
        first, second = copies("b-1", "b-2")
        threads = [
            threading.Thread(target=lambda: actual.append(one.handle(first, slow))),
            threading.Thread(target=lambda: actual.append(two.handle(second, other))),
        ]
        threads[0].start()
        assert has_begun.wait(TIMEOUT)
        threads[1].start()
        assert waits.wait(TIMEOUT)
        server.until(lambda: two.health()["in_flight"] == 0)  # between two looks
        may_end.set()
        for thread in threads:
            thread.join()

    assert sorted(actual) == sorted(outcomes)
    assert len(other.calls) == (1 if error else 0)
    assert (effects(dsn), marks(dsn)) == (["m-1"], 1)


def test_a_copy_that_waits_takes_no_connection(server: FakeServer, dsn: str) -> None:
    has_begun, may_end, waits = (threading.Event() for _ in range(3))
    begins: list[object] = []

    @contextmanager
    def begin() -> Iterator[psycopg.Connection]:
        begins.append(1)
        with psycopg.connect(dsn) as connection:
            yield connection

    def stay() -> None:
        has_begun.set()
        assert may_end.wait(TIMEOUT)

    window = PostgresWindow(begin)
    handler = Adding(window)
    handler.afterwards = stay
    first, second = copies("b-1", "b-2")
    options: dict[str, Any] = {"keep_alive": lambda _: waits.set(), "lease": 0.1}

    with guarding(server, dedupe=window, hold_for=TIMEOUT, **options) as guard:
        threads = [
            threading.Thread(target=guard.handle, args=(each, handler))
            for each in (first, second)
        ]
        threads[0].start()
        assert has_begun.wait(TIMEOUT)
        threads[1].start()
        assert waits.wait(TIMEOUT)
        meanwhile = len(begins)
        may_end.set()
        for thread in threads:
            thread.join()

    assert meanwhile == 1
    assert (handler.calls, effects(dsn)) == (["b-1"], ["m-1"])


def test_a_message_that_is_no_copy_does_not_wait(server: FakeServer, dsn: str) -> None:
    one, two = connecting(dsn), connecting(dsn)
    inner = Adding(two)
    outcomes: list[Outcome] = []
    wishes: dict[str, Any] = {"dedupe": two, "hold_for": 0.01}

    with (
        guarding(server, dedupe=one) as guard,
        guarding(server, **wishes) as same_group,
        guarding(server, consumer_group="audit", **wishes) as another_group,
        guarding(server, topic="invoices", **wishes) as another_topic,
    ):

        def handler(one_message: Message) -> None:
            one.connection.execute(ADD, [one_message["message_id"]])
            other = message("b-2", message_id="m-2")
            outcomes.extend(
                (
                    same_group.handle(other, inner),
                    another_group.handle(one_message, inner),
                    another_topic.handle(one_message, inner),
                    same_group.handle(one_message, inner),
                )
            )

        outcomes.append(guard.handle(message(message_id="m-1"), handler))

    assert outcomes == [HANDLED, HANDLED, HANDLED, RELEASE, HANDLED]
    assert marks(dsn) == 4


def test_a_kill_around_the_commit_leaves_each_effect_once(
    server: FakeServer, dsn: str, tmp_path: Path
) -> None:
    places = (
        postgres_dedupe_consumer.BEFORE_MARK,
        postgres_dedupe_consumer.BEFORE_COMMIT,
        postgres_dedupe_consumer.AFTER_COMMIT,
    )
    messages = [f"{place}-{n}" for n in range(8) for place in places]
    plan: postgres_dedupe_consumer.DedupingPlan = {
        "url": server.url,
        "dsn": dsn,
        "folder": str(tmp_path),
        "messages": messages,
    }
    ends: list[int | None] = []

    while not ends or (ends[-1] != 0 and len(ends) <= len(messages)):
        process = FORKS.Process(
            target=postgres_dedupe_consumer.main, args=[json.dumps(plan)]
        )
        process.start()
        process.join(TIMEOUT)
        ends.append(process.exitcode)

    written = (tmp_path / "settled").read_text().splitlines()
    lines = dict(line.split() for line in written)
    assert ends == [-signal.SIGKILL] * 24 + [0]
    assert effects(dsn) == sorted(messages)
    assert marks(dsn) == 24
    assert {
        (line.partition("-")[0], line[-1], outcome) for line, outcome in lines.items()
    } == {
        *{(place, "b", "skipped") for place in places},
        *{(place, "a", "handled") for place in places[:2]},
        (places[2], "a", "skipped"),  # its effect was there already
    }
    assert len(lines) == 48
    assert server.reports.failures == {}


# Trouble with the database


def test_a_connection_lost_in_the_handler_is_retried_and_counts_once(
    server: FakeServer, dsn: str
) -> None:
    window = connecting(dsn)
    handler = Adding(window)

    def lose() -> None:
        handler.afterwards = lambda: None
        pid = window.connection.info.backend_pid
        with psycopg.connect(dsn) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [pid])
        window.connection.execute("SELECT 1")

    handler.afterwards = lose

    with guarding(server, dedupe=window) as guard:
        outcome = guard.handle(message(message_id="m-1"), handler)

    assert (outcome, handler.calls) == (HANDLED, ["b-1", "b-1"])
    assert (effects(dsn), marks(dsn)) == (["m-1"], 1)


def test_a_commit_whose_answer_is_lost_is_not_done_again(
    server: FakeServer, dsn: str
) -> None:
    @contextmanager
    def begin() -> Iterator[psycopg.Connection]:
        with psycopg.connect(dsn) as connection:
            yield connection
        raise psycopg.OperationalError("the answer is lost")

    window = PostgresWindow(begin)
    handler = Adding(window)

    with guarding(server, dedupe=window) as guard:
        outcome = guard.handle(message(message_id="m-1"), handler)

    assert (outcome, handler.calls, effects(dsn)) == (SKIPPED, ["b-1"], ["m-1"])


def test_a_commit_that_is_refused_is_the_messages_failure(
    server: FakeServer, dsn: str
) -> None:
    def handler(one_message: Message) -> None:
        window.connection.execute(
            "CREATE TEMP TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
        window.connection.execute("INSERT INTO once VALUES (1), (1)")

    window = connecting(dsn)

    with guarding(server, dedupe=window) as guard:
        outcome = guard.handle(message(message_id="m-1"), handler)

    (report,) = server.reports.failures.values()
    assert (outcome, marks(dsn)) == (POISONED, 0)
    assert report["exception"]["type"].endswith("UniqueViolation")


def refused(
    server: FakeServer, window: PostgresWindow, handler: Any, message_id: str = "m-{}"
) -> list[Outcome]:
    with guarding(server, dedupe=window, hold_for=0.01) as guard:
        messages = [message(f"b-{n}", message_id=message_id.format(n)) for n in (1, 2)]
        return [guard.handle(each, handler) for each in messages]


def test_where_no_mark_can_be_made_messages_are_released_uncharged(
    server: FakeServer, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [psycopg.OperationalError("away")] * 9

    def begin() -> Any:
        if errors:
            raise errors.pop()
        return psycopg.connect(dsn)

    window = PostgresWindow(begin)
    handler = Adding(window)
    policy = RetryPolicy(max_attempts=1)

    with guarding(server, dedupe=window, hold_for=0.01, policy=policy) as guard:
        outcomes = [guard.handle(copies("b-1")[0], handler) for _ in range(9)]
        away = str(guard.health()["warnings"])
        outcomes.append(guard.handle(copies("b-1")[0], handler))
        back = str(guard.health()["warnings"])

    assert outcomes == [RELEASE] * 9 + [HANDLED]
    assert ("be marked" in away, "be marked" in back) == (True, False)
    assert server.reports.failures == {}
    assert "cannot be told: OperationalError: away" in caplog.text


# Misuse


def failed_silently(window: PostgresWindow, _: Message) -> None:
    try:
        window.connection.execute("SELECT 1 / 0")
    except psycopg.errors.DivisionByZero:
        return


def commits_alone(window: PostgresWindow, _: Message) -> None:
    window.connection.commit()


def rolls_back(window: PostgresWindow, _: Message) -> None:
    raise psycopg.Rollback


@pytest.mark.parametrize(
    ("handle", "says"),
    [
        (failed_silently, "returned with its transaction failed, or ended"),
        (commits_alone, "returned with its transaction failed, or ended"),
        (rolls_back, "rolled back on purpose"),
    ],
)
def test_a_handler_whose_effects_are_not_committed_has_not_handled(
    server: FakeServer, dsn: str, handle: Callable[..., None], says: str
) -> None:
    @contextmanager
    def begin() -> Iterator[psycopg.Connection]:
        with psycopg.connect(dsn) as connection:
            if handle is not rolls_back:
                yield connection
                return
            with connection.transaction():
                yield connection

    window = PostgresWindow(begin)
    policy = RetryPolicy(max_attempts=1)

    with guarding(server, dedupe=window, policy=policy) as guard:
        outcome = guard.handle(message(message_id="m-1"), partial(handle, window))

    (report,) = server.reports.failures.values()
    assert outcome is POISONED
    assert says in report["exception"]["message"]


def test_a_connection_that_commits_by_itself_is_refused(
    server: FakeServer, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        window = PostgresWindow(lambda: nullcontext(connection))
        handler = Adding(window)
        outcomes = refused(server, window, handler)

    assert (outcomes, handler.calls, marks(dsn)) == ([RELEASE] * 2, [], 0)
    assert "such as connection.transaction" in caplog.text


def test_a_transaction_of_psycopg_within_another_is_refused_at_once(
    server: FakeServer, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT 1")  # by which a transaction is open
        window = PostgresWindow(connection.transaction)
        handler = Adding(window)
        outcomes = refused(server, window, handler)

    assert (outcomes, handler.calls) == ([RELEASE] * 2, [])
    assert "say nested=True and commit before you settle" in caplog.text


@pytest.mark.parametrize("message_id", ["m-{}", ""])
def test_a_transaction_that_stays_open_is_refused_at_the_next_message(
    server: FakeServer, dsn: str, caplog: pytest.LogCaptureFixture, message_id: str
) -> None:
    connection = psycopg.connect(dsn)
    window = PostgresWindow(lambda: nullcontext(connection))
    handler = Adding(window)
    outcomes = refused(server, window, handler, message_id=message_id)
    connection.close()

    assert (outcomes, handler.calls) == ([HANDLED, RELEASE], ["b-1"])
    assert "commit that before the next message" in caplog.text


def test_with_nested_a_batch_commits_at_once(server: FakeServer, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        window = PostgresWindow(connection.transaction, nested=True)
        handler = Adding(window, None, ValueError(), ValueError(), None)
        messages = [message(f"b-{n}", message_id=f"m-{n}") for n in (1, 2, 3, 1)]
        with guarding(server, dedupe=window) as guard, connection.transaction():
            outcomes = [guard.handle(each, handler) for each in messages]
            before = effects(dsn)

    assert outcomes == [HANDLED, POISONED, HANDLED, SKIPPED]
    assert (before, effects(dsn)) == ([], ["m-1", "m-3"])


@pytest.mark.parametrize(
    "row_factory",
    [rows.tuple_row, rows.dict_row, rows.namedtuple_row, rows.scalar_row],
)
def test_any_usual_row_factory_works(
    server: FakeServer, dsn: str, row_factory: Any
) -> None:
    window = PostgresWindow(lambda: psycopg.connect(dsn, row_factory=row_factory))
    handler = Adding(window)

    with guarding(server, dedupe=window) as guard:
        outcomes = [guard.handle(each, handler) for each in copies("b-1", "b-2")]

    assert (outcomes, effects(dsn)) == ([HANDLED, SKIPPED], ["m-1"])


def test_rows_of_no_known_form_are_refused(
    server: FakeServer, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    row_factory: Any = rows.kwargs_row(lambda **values: str(values))
    window = PostgresWindow(lambda: psycopg.connect(dsn, row_factory=row_factory))

    assert refused(server, window, Adding(window)) == [RELEASE] * 2
    assert "tuples or dictionaries" in caplog.text
    assert marks(dsn) == 0


@pytest.mark.parametrize("handle", [None, object(), "a cursor"])
def test_a_begin_that_yields_no_connection_is_refused(
    server: FakeServer, caplog: pytest.LogCaptureFixture, handle: object
) -> None:
    window = PostgresWindow(lambda: nullcontext(handle))

    assert refused(server, window, Adding(window)) == [RELEASE] * 2
    assert "PostgresWindow: begin gives no connection" in caplog.text


def test_a_missing_table_is_warned_about_with_the_remedy(
    server: FakeServer, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = f"{dsn}?options=-csearch_path%3Dnowhere"
    window = connecting(elsewhere)

    assert refused(server, window, Adding(window)) == [RELEASE] * 2
    assert "run poisonguard.dedupe.postgres.schema()" in caplog.text


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostgresWindow("postgresql://"),  # type: ignore[arg-type]
        lambda: PostgresWindow(nullcontext).connection,
        lambda: PostgresWindow(nullcontext).forget(timedelta(0)),
        lambda: PostgresWindow(nullcontext).forget(30),  # type: ignore[arg-type]
        lambda: PostgresWindow(nullcontext).forget(timedelta(1), batch=0),
    ],
    ids=["a text", "outside", "no time", "a number", "no batch"],
)
def test_unusable_arguments_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(Misconfigured, match="PostgresWindow: "):
        make()


def test_an_unused_window_connection_is_warned_about(
    server: FakeServer, dsn: str
) -> None:
    window, messages = connecting(dsn), copies("b-1", "b-2")

    with guarding(server, dedupe=window) as guard:
        guard.handle(messages[0], lambda _: None)
        before = str(guard.health()["warnings"])
        guard.handle(message(message_id="m-2"), Adding(window))
        after = str(guard.health()["warnings"])

    assert "Use window.connection" in before
    assert "Use window.connection" not in after


# Other connections


def test_a_pool_serves_many_threads(server: FakeServer, dsn: str) -> None:
    ids = [f"m-{n}" for n in range(25)]
    outcomes: list[Outcome] = []

    with ConnectionPool(dsn, min_size=4, timeout=TIMEOUT) as pool:
        window = PostgresWindow(pool.connection)
        handler = Adding(window)

        def work() -> None:
            for message_id in ids:
                one_message = message(f"{message_id}/{uuid4()}", message_id=message_id)
                outcomes.append(guard.handle(one_message, handler))

        with guarding(server, dedupe=window, hold_for=TIMEOUT) as guard:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    assert effects(dsn) == sorted(ids)
    assert (outcomes.count(HANDLED), outcomes.count(SKIPPED)) == (25, 75)


def test_tasks_use_connections_of_their_own(server: FakeServer, dsn: str) -> None:
    @asynccontextmanager
    async def begin() -> AsyncIterator[psycopg.AsyncConnection]:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            yield connection

    window = PostgresWindow(begin)
    errors = iter([ValueError(), None])

    async def handler(one_message: Message) -> None:
        await window.connection.execute(ADD, [one_message["message_id"]])
        error = next(errors, None)
        if error:
            raise error

    async def main(guard: Guard) -> list[Outcome]:
        outcomes = [
            guard.handle_async(message(f"b-{n}", message_id=f"m-{n % 3}"), handler)
            for n in range(12)
        ]
        done = await asyncio.gather(*outcomes)
        assert await window.forget_async(timedelta(1)) == 0
        return done

    with guarding(server, dedupe=window, hold_for=TIMEOUT) as guard:
        outcomes = asyncio.run(asyncio.wait_for(main(guard), TIMEOUT))

    assert effects(dsn) == ["m-0", "m-1", "m-2"]
    assert (outcomes.count(HANDLED), outcomes.count(SKIPPED)) == (3, 9)


def test_a_plain_transaction_is_refused_for_tasks_and_the_other_way_round(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def begin() -> AsyncIterator[None]:
        yield

    @contextmanager
    def begin_plainly() -> Iterator[None]:
        yield

    async def handle(_: Message) -> None:
        await asyncio.sleep(0)

    plain, other = PostgresWindow(begin_plainly), PostgresWindow(begin)
    with guarding(server, dedupe=plain, hold_for=0.01) as guard:
        awaited = asyncio.run(guard.handle_async(copies("b-1")[0], handle))

    assert (awaited, refused(server, other, print)) == (RELEASE, [RELEASE] * 2)
    assert "entered by `async with`" in caplog.text
    assert "entered by `with`" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_django_handlers_use_their_usual_connection(server: FakeServer) -> None:
    with django_connection.cursor() as cursor:
        cursor.execute(schema())
        cursor.execute("CREATE TABLE effects (message text)")
    begin = partial(transaction.atomic, durable=True)
    window = PostgresWindow(begin, connection=django_connection)
    errors = iter([ValueError(), None])

    def handler(one_message: Message) -> None:
        with django_connection.cursor() as cursor:
            cursor.execute(ADD, [one_message["message_id"]])
        error = next(errors, None)
        if error:
            raise error

    try:
        with guarding(server, dedupe=window) as guard:
            outcomes = [guard.handle(each, handler) for each in copies("b-1", "b-2")]
            warnings = str(guard.health()["warnings"])
        with django_connection.cursor() as cursor:
            cursor.execute("SELECT message FROM effects")
            rows = cursor.fetchall()
    finally:
        with django_connection.cursor() as cursor:
            cursor.execute("DROP TABLE effects, poisonguard_marks")

    assert (outcomes, rows) == ([HANDLED, SKIPPED], [("m-1",)])
    assert "window.connection" not in warnings


def test_old_marks_are_forgotten_by_batches(server: FakeServer, dsn: str) -> None:
    window = connecting(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO poisonguard_marks SELECT 'billing', 'orders', n::text::bytea,"
            " now() - n * interval '1 day' FROM generate_series(0, 24) AS n"
        )

    forgotten = window.forget(timedelta(days=5, hours=12), batch=4)

    assert (forgotten, marks(dsn)) == (19, 6)
