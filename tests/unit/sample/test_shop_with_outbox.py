"""The shop of the sample: its tables, its outbox, and the script that corrupts it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from psycopg.errors import UniqueViolation
from redis import Redis

from poisonguard import Away
from poisonguard.outbox import OutboxMessage, SendOutcome
from poisonguard.outbox.publishers.redis_streams import RedisStreamsPublisher
from poisonweb.sample import shop_tables, shop_with_outbox
from poisonweb.sample.shop_with_outbox import Shop
from tests.sdk.outbox_sweeping.conftest import outbox, outbox_database
from tests.sdk.outbox_sweeping.outbox_tables import DROP_ALL, OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    sweeping,
    work_until,
)
from tests.waiting import wait_until

__all__ = ["outbox", "outbox_database"]

MEND = (
    "ALTER TABLE poisonguard_outbox ADD CONSTRAINT poisonguard_outbox_one_message"
    " UNIQUE (producer, message_id)"
)


@pytest.fixture
def tables(outbox: OutboxTables) -> OutboxTables:
    """Make the tables of the shop in an empty database."""
    outbox.execute(DROP_ALL)
    shop_tables.make(outbox.dsn)
    return outbox


def away(batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
    raise Away("Redis is away")


def test_the_tables_are_made_once_and_stay_as_a_person_mended_them(
    tables: OutboxTables,
) -> None:
    number = shop_with_outbox.sell(tables.connection, cents=100)
    tables.execute(MEND)

    shop_tables.make(tables.dsn)

    assert tables.count() == 1
    with pytest.raises(UniqueViolation):
        tables.execute(
            "INSERT INTO poisonguard_outbox (producer, message_id, topic, body)"
            " VALUES ('sample-shop', %s, 'receipts', 'x')",
            [f"receipt-{number}"],
        )


def test_a_sale_and_its_receipt_are_one_transaction(tables: OutboxTables) -> None:
    number = shop_with_outbox.sell(tables.connection, cents=1_250)
    with pytest.raises(ZeroDivisionError), tables.connection.transaction():
        shop_with_outbox.sell(tables.connection, cents=499)
        raise ZeroDivisionError

    assert tables.execute("SELECT number, cents FROM sale") == [(number, 1_250)]
    [(message_id, topic, body)] = tables.execute(
        "SELECT message_id, topic, body FROM poisonguard_outbox"
    )
    assert (message_id, topic) == (f"receipt-{number}", "receipts")
    assert json.loads(body) == {"receipt": number, "cents": 1_250}


def test_a_price_is_sent_at_once_and_written_while_redis_is_away(
    tables: OutboxTables, redis: Redis, redis_url: str
) -> None:
    publish = RedisStreamsPublisher(redis_url)
    shop_with_outbox.announce_price(tables.connection, publish, cents=499)
    entries: Any = redis.xrange("prices")
    assert [json.loads(fields[b"body"]) for _, fields in entries] == [{"cents": 499}]
    assert tables.count() == 0

    shop_with_outbox.announce_price(tables.connection, away, cents=1_250)

    assert tables.waiting == 1
    publish.close()


def test_a_corrected_receipt_is_set_aside_with_the_script_as_its_writer(
    tables: OutboxTables,
) -> None:
    number = shop_with_outbox.sell(tables.connection, cents=100)
    with sweeping(tables.dsn, RecordingPublisher()) as sweeper:
        work_until(sweeper, lambda: not tables.waiting)
        shop_with_outbox.correct_receipt(tables.dsn, number)
        work_until(sweeper, tables.reasons)

    [(row, reason)] = tables.reasons().items()
    assert "two messages under one id" in reason
    assert tables.column("writer_application", row) == "receipt-correction.sh"
    assert tables.count("sent_at IS NOT NULL") == 1


def test_a_script_corrupts_no_more_than_a_person_can_decide(
    tables: OutboxTables,
) -> None:
    number = shop_with_outbox.sell(tables.connection, cents=100)
    for _ in range(3 * shop_with_outbox.MOST_SET_ASIDE):
        shop_with_outbox.correct_receipt(tables.dsn, number)
        tables.execute("UPDATE poisonguard_outbox SET quarantined_at = now()")

    assert tables.count() == shop_with_outbox.MOST_SET_ASIDE == 5


def test_a_script_is_refused_by_a_table_that_was_mended(
    tables: OutboxTables, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    number = shop_with_outbox.sell(tables.connection, cents=100)
    tables.execute(MEND)

    shop_with_outbox.correct_receipt(tables.dsn, number)

    assert tables.count() == 1
    assert "receipt-correction.sh is refused" in caplog.text


def test_it_sells_a_lot_at_first_and_tidies_up(
    tables: OutboxTables,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables.execute(
        "INSERT INTO sale (cents, sold_at) VALUES (1, now() - '2h'::interval)"
    )
    tables.put("old")
    tables.execute("UPDATE poisonguard_outbox SET sent_at = now() - '2h'::interval")
    monkeypatch.setattr(shop_with_outbox, "TIDY_EVERY", 0.0)
    monkeypatch.setattr(shop_with_outbox, "MOST_ENTRIES", 10)
    for _ in range(200):
        redis.xadd("prices", {"body": b"1"})
    stop = threading.Event()
    sold = Shop(tables.dsn, redis, away, stop=stop, every=0.01)
    thread = threading.Thread(target=sold.run)
    thread.start()
    try:
        wait_until(lambda: tables.count("message_id = 'receipt-14'") == 2)
    finally:
        stop.set()
        thread.join()

    assert tables.count("message_id = 'old'") == 0
    assert tables.execute("SELECT FROM sale WHERE cents = 1") == []
    assert redis.xlen("prices") < 200
    assert tables.count("topic = 'prices'") > 5


def test_it_waits_for_a_database_that_is_away(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    closed = Shop("postgresql://p@127.0.0.1:1/p", redis, away, stop=stop)
    thread = threading.Thread(target=closed.run)
    thread.start()
    try:
        wait_until(lambda: "the shop waits" in caplog.text)
    finally:
        stop.set()
        thread.join()
