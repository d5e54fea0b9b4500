"""A message is put in the transaction that it is about, by one INSERT."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import class_row, dict_row, scalar_row

from poisonguard import MessageIdTaken, Misconfigured, Refused
from poisonguard.outbox import Outbox, OutboxLimits, TopicLimits
from poisonguard.outbox.connections import Row
from poisonguard.outbox.postgres_schema import schema
from tests.sdk.outbox.executed_statements import ExecutedStatements

UNLIMITED = OutboxLimits(rows=None, bytes=None)
ROWS = """
SELECT producer, message_id, topic, key, body, headers
FROM poisonguard_outbox ORDER BY row_id
"""


@pytest.fixture
def connection(outbox_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(outbox_dsn) as connection:
        yield connection


@pytest.fixture
def outbox(connection: psycopg.Connection) -> Outbox:
    return Outbox(connection, producer="shop", limits=UNLIMITED)


def rows(dsn: str) -> list[Row]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(ROWS).fetchall()


# In the caller's transaction


def test_a_message_is_there_with_the_commit_whole(
    connection: psycopg.Connection, outbox: Outbox, outbox_dsn: str
) -> None:
    mixed: Any = {"h": "ü", b"\xfe": b"\xff"}

    identity = outbox.put("orders", b"\0\xff", headers=mixed, key="42")
    before = rows(outbox_dsn)
    connection.commit()

    headers = [b"h", "ü".encode(), b"\xfe", b"\xff"]
    assert before == []
    assert rows(outbox_dsn) == [("shop", identity, "orders", "42", b"\0\xff", headers)]
    assert UUID(identity).version == 4


def test_a_put_is_one_insert(connection: psycopg.Connection, outbox: Outbox) -> None:
    statements = ExecutedStatements(connection)

    outbox.put("orders", b"one", headers={"h": "v"}, key="k", due_at=soon())

    (text,) = statements.texts
    assert text.startswith("INSERT INTO poisonguard_outbox ")


@pytest.mark.parametrize(
    "factory",
    [dict_row, scalar_row, class_row(dict), None],
    ids=["dicts", "scalars", "a class", "tuples"],
)
def test_rows_of_any_kind_do(outbox_dsn: str, factory: Any) -> None:
    options = {} if factory is None else {"row_factory": factory}
    with psycopg.connect(outbox_dsn, **options) as connection:
        outbox = Outbox(connection, producer="shop")
        outbox.put("orders", b"one", message_id="m-7")
        with pytest.raises(MessageIdTaken):
            outbox.put("orders", b"one", message_id="m-7")

    assert len(rows(outbox_dsn)) == 1


def test_a_pipeline_takes_messages_too(
    connection: psycopg.Connection, outbox: Outbox
) -> None:
    with connection.pipeline():
        outbox.put("orders", b"one", message_id="m-7")
        with pytest.raises(MessageIdTaken):
            outbox.put("orders", b"two", message_id="m-7")


def test_a_client_side_cursor_writes_the_same(outbox_dsn: str) -> None:
    body = bytes(range(256)) + b"'%s"
    with psycopg.connect(outbox_dsn, cursor_factory=psycopg.ClientCursor) as connection:
        outbox = Outbox(connection, producer="shop")
        identity = outbox.put("it's %s", body, headers=[("h", body)], key="\\'%")

    assert rows(outbox_dsn) == [
        ("shop", identity, "it's %s", "\\'%", body, [b"h", body])
    ]


@pytest.mark.parametrize("make", [str, UUID])
def test_an_id_of_the_application_is_used(
    connection: psycopg.Connection, outbox: Outbox, make: Any
) -> None:
    text = str(uuid4())

    assert outbox.put("orders", b"one", message_id=make(text)) == text


def soon() -> datetime:
    return datetime(2026, 11, 27, 8, tzinfo=timezone(timedelta(hours=5)))


def test_a_due_time_is_written_and_its_absence_is_now(
    connection: psycopg.Connection, outbox: Outbox
) -> None:
    outbox.put("orders", b"one", due_at=soon())
    outbox.put("orders", b"two")

    query = "SELECT due_at, now() FROM poisonguard_outbox ORDER BY row_id"
    (first, _), (second, now) = connection.execute(query).fetchall()
    assert (first, second) == (soon(), now)


def test_a_schema_has_an_outbox_of_its_own(
    connection: psycopg.Connection, outbox_dsn: str
) -> None:
    name = 'odd "%s" schema'
    connection.execute('CREATE SCHEMA "odd ""%s"" schema"')  # noqa: RUF100
    connection.execute('SET LOCAL search_path TO "odd ""%s"" schema"')
    connection.execute(schema())
    connection.execute("SET LOCAL search_path TO public")

    identity = Outbox(connection, producer="shop", schema=name).put("orders", b"one")

    query = 'SELECT message_id FROM "odd ""%s"" schema".poisonguard_outbox'
    assert connection.execute(query).fetchall() == [(identity,)]
    assert connection.execute(ROWS).fetchall() == []
    connection.rollback()


# An id that is taken


def test_an_id_that_is_taken_is_named_and_the_transaction_goes_on(
    connection: psycopg.Connection, outbox: Outbox, outbox_dsn: str
) -> None:
    outbox.put("orders", b"one", headers={"h": "v"}, message_id="m-7")

    with pytest.raises(MessageIdTaken, match="'m-7'.*this very message") as same:
        outbox.put("orders", b"one", headers={"h": "v"}, message_id="m-7")
    with pytest.raises(MessageIdTaken, match="'m-7'.*leave message_id out") as other:
        outbox.put("orders", b"two", headers={"h": "v"}, message_id="m-7")
    outbox.put("orders", b"three", message_id="m-8")
    connection.commit()

    assert (same.value.is_same, other.value.is_same) == (True, False)
    assert same.value.message_id == "m-7"
    assert [row[1] for row in rows(outbox_dsn)] == ["m-7", "m-8"]


@pytest.mark.parametrize(
    "change",
    [{"topic": "bills"}, {"key": "k"}, {"headers": ()}, {"headers": {b"h": b""}}],
    ids=str,
)
def test_any_other_content_is_another_message(
    outbox: Outbox, change: dict[str, Any]
) -> None:
    message = {"topic": "orders", "body": b"one", "headers": {"h": "v"}, "key": ""}
    outbox.put(**message, message_id="m-7")  # type: ignore[arg-type]

    with pytest.raises(MessageIdTaken) as conflict:
        outbox.put(**(message | change), message_id="m-7")

    assert not conflict.value.is_same


def test_two_producers_have_their_own_ids(connection: psycopg.Connection) -> None:
    for producer in ("shop", "bank"):
        Outbox(connection, producer=producer).put("orders", b"one", message_id="m-7")

    assert len(connection.execute(ROWS).fetchall()) == 2


def test_a_table_that_swallows_messages_is_no_taken_id(
    connection: psycopg.Connection, outbox: Outbox
) -> None:
    connection.execute(
        "CREATE FUNCTION pg_temp.nothing() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN NULL; END'"
    )
    connection.execute(
        "CREATE TRIGGER swallow BEFORE INSERT ON poisonguard_outbox"
        " FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing()"
    )

    with pytest.raises(Refused, match="has not taken the message: a trigger"):
        outbox.put("orders", b"one")
    connection.rollback()


# What cannot be sent

LONG = "x" * 2**20
NOT_CLEAN = "control character or half a surrogate"


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("topic", "", "1 to 255 characters"),
        ("topic", " ", "1 to 255 characters"),
        ("topic", "x" * 256, "length 256: give 1 to 255"),
        ("topic", LONG, "length 1,048,576: give 1 to 255"),
        ("topic", "a\0b", NOT_CLEAN),
        ("topic", "\ud800", NOT_CLEAN),
        ("topic", None, "None: give a str"),
        ("topic", b"orders", "give a str"),
        ("key", LONG, "length 1,048,576"),
        ("key", "a\0b", NOT_CLEAN),
        ("key", "\udfff", NOT_CLEAN),
        ("key", None, "give a str"),
        ("key", 7, "7: give a str"),
        ("message_id", LONG, "length 1,048,576"),
        ("message_id", "", "1 to 255 characters"),
        ("message_id", "a\0b", NOT_CLEAN),
        ("message_id", "\ud800", NOT_CLEAN),
        ("message_id", 7, "7: give a str"),
        ("body", None, "None: give bytes"),
        ("body", "text", "'text': give bytes"),
        ("body", {"a": 1}, "give bytes, such as json.dumps"),
        ("body", [1, 2], "give bytes"),
        ("body", 7, "give bytes"),
        ("headers", None, "give a mapping"),
        ("headers", "text", "give a mapping"),
        ("headers", b"ab", "give a mapping"),
        ("headers", 7, "give a mapping"),
        ("headers", [("a",)], "give a name and a value"),
        ("headers", [7], "give a name and a value"),
        ("headers", {"": "v"}, "at least a letter"),
        ("headers", {"h": None}, "give str or bytes"),
        ("headers", {7: "v"}, "give str or bytes"),
        ("headers", {"h": "\ud800"}, NOT_CLEAN),
        ("headers", [("h", "v")] * 10_001, "more than 10,000 headers"),
        ("headers", {"h": LONG}, "1,048,577 bytes, and 1,048,576 are allowed"),
        ("due_at", "2026-11-27", "give a datetime"),
        ("due_at", 7.5, "give a datetime"),
        ("due_at", datetime(2026, 11, 26, 12), "no time zone"),  # noqa: DTZ001
        ("due_at", datetime.max.replace(tzinfo=UTC), "at most 30 days from now"),
        ("due_at", datetime.now(UTC) + timedelta(days=31), "at most 30 days from now"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_cannot_be_sent_is_refused_by_its_name(
    connection: psycopg.Connection,
    outbox: Outbox,
    field: str,
    value: Any,
    remedy: str,
) -> None:
    statements = ExecutedStatements(connection)
    message = {"topic": "orders", "body": b"one"} | {field: value}

    with pytest.raises(Refused, match=f"^Outbox: {field}.*{remedy}") as refused:
        outbox.put(**message)

    assert statements.texts == []
    assert len(str(refused.value)) < 300


def test_an_endless_generator_of_headers_ends(outbox: Outbox) -> None:
    def endless() -> Iterator[tuple[str, str]]:
        while True:
            yield "h", "v"

    with pytest.raises(Refused, match="more than 10,000"):
        outbox.put("orders", b"one", headers=endless())


def test_ten_thousand_headers_and_other_bytes_do(
    outbox: Outbox, connection: psycopg.Connection
) -> None:
    headers = [(f"h{number}", b"\0") for number in range(10_000)]

    outbox.put("orders", bytearray(b"one"), headers=headers)
    outbox.put("orders", memoryview(b"two"), headers=iter([("h", "")]))
    outbox.put("orders", b"", due_at=datetime.now(UTC) + timedelta(days=29))

    bodies, headers_of = zip(
        *[(row[4], row[5]) for row in connection.execute(ROWS)], strict=True
    )
    assert bodies == (b"one", b"two", b"")
    assert [len(each) for each in headers_of] == [20_000, 2, 0]


def test_a_body_over_the_limit_of_its_topic_is_refused(
    connection: psycopg.Connection,
) -> None:
    limits = OutboxLimits(
        max_body=8,
        each_topic=TopicLimits(max_body=6),
        topics={"large": TopicLimits(max_body=10), "plain": TopicLimits()},
    )
    outbox = Outbox(connection, producer="shop", limits=limits)

    for topic, size in (("orders", 6), ("large", 10), ("plain", 8)):
        outbox.put(topic, b"x" * size)
        with pytest.raises(
            Refused, match=f"body has {size + 1} bytes.*'{topic}' takes"
        ):
            outbox.put(topic, b"x" * (size + 1))


# Connections that cannot be used


def test_a_closed_connection_says_so(outbox_dsn: str) -> None:
    connection = psycopg.connect(outbox_dsn)
    outbox = Outbox(connection, producer="shop")
    connection.close()

    with pytest.raises(psycopg.OperationalError, match="closed"):
        outbox.put("orders", b"one")


def test_a_failed_transaction_takes_no_message(
    connection: psycopg.Connection, outbox: Outbox
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        outbox.put("orders", b"one")


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("ALTER TABLE poisonguard_outbox RENAME TO elsewhere", "tables are missing"),
        ("ALTER TABLE poisonguard_outbox RENAME key TO k", "tables were altered"),
        (
            "CREATE ROLE poisonguard_test_poor",
            "INSERT on poisonguard_outbox, and SELECT",
        ),
    ],
    ids=["renamed", "altered", "without rights"],
)
def test_a_table_that_cannot_be_used_is_explained(
    connection: psycopg.Connection, outbox: Outbox, statement: str, remedy: str
) -> None:
    connection.execute(statement)
    if "ROLE" in statement:
        connection.execute("GRANT poisonguard_test_poor TO CURRENT_USER")
        connection.execute("SET LOCAL ROLE poisonguard_test_poor")

    with pytest.raises(Misconfigured, match=remedy) as error:
        outbox.put("orders", b"one")

    assert isinstance(error.value.__cause__, psycopg.Error)
    connection.rollback()


@pytest.mark.parametrize("value", [None, "dsn", object, 7], ids=repr)
def test_no_connection_is_refused(value: Any) -> None:
    with pytest.raises(Misconfigured, match="is no connection of psycopg or Django"):
        Outbox(value, producer="shop")


def test_an_asynchronous_connection_is_refused(outbox_dsn: str) -> None:
    async def make() -> None:
        async with await psycopg.AsyncConnection.connect(outbox_dsn) as connection:
            Outbox(connection, producer="shop")

    with pytest.raises(Misconfigured, match="AsyncConnection is asynchronous"):
        asyncio.run(make())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer", ""),
        ("producer", None),
        ("producer", "a\0b"),
        ("producer", "x" * 256),
        ("producer", "\ud800"),
        ("limits", None),
        ("limits", {}),
        ("schema", None),
        ("schema", "a\0b"),
        ("schema", "x" * 64),
    ],
)
def test_an_unusable_setting_is_named(
    connection: psycopg.Connection, name: str, value: Any
) -> None:
    settings: dict[str, Any] = {"producer": "shop"} | {name: value}

    with pytest.raises(Misconfigured, match=f"^Outbox: {name} is "):
        Outbox(connection, **settings)
