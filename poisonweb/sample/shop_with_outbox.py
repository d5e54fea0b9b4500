"""A shop that writes messages to an outbox in its database, as a team writes it.

A sale and its receipt are one transaction: `put`. Prices belong to no transaction: they
are sent at once, and written to the outbox while Redis is away: `send_or_put`. Now and
then a script corrects a receipt by a second row under its message id, which the table
does not prevent: the sweeper sets that row aside, and its page names the script.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import timedelta
from itertools import cycle
from typing import Any

import psycopg
from psycopg.errors import UniqueViolation
from redis import Redis
from redis.exceptions import RedisError

from poisonguard.errors import GuardError
from poisonguard.outbox import Outbox, OutboxLimits, Publish
from poisonweb.sample.back_off import BackOff

log = logging.getLogger(__name__)

RECEIPTS, PRICES = "receipts", "prices"
PRODUCER = "sample-shop"
SCRIPT = "receipt-correction.sh"
LIMITS = OutboxLimits(rows=1_000, max_body=64 * 1024)
HEADERS = {"content-type": "application/json"}
CENTS = (499, 1_250, 8_900)
# At the first start, so that the pages show something within seconds.
FIRST_SALES = 20
CORRECT_EVERY = 150
# The first correction follows soon after the first sales, and corrects one of them.
CORRECT_AT, CORRECTED = 24, 10
MOST_SET_ASIDE = 5
TIDY_EVERY = 60.0
RETENTION = timedelta(hours=1)
MOST_ENTRIES = 1_000  # of a stream: it has no consumer

_SELL = "INSERT INTO sale (cents) VALUES (%s) RETURNING number"
_CORRECT = """
INSERT INTO poisonguard_outbox (producer, message_id, topic, key, body)
SELECT %(producer)s, %(message_id)s, %(topic)s, %(key)s, %(body)s
WHERE %(most)s > (
    SELECT count(*) FROM poisonguard_outbox
    WHERE quarantined_at IS NOT NULL AND dropped_at IS NULL
)
"""
_TIDY = (
    "DELETE FROM poisonguard_outbox WHERE sent_at < now() - %s",
    "DELETE FROM sale WHERE sold_at < now() - %s",
)

Connection = psycopg.Connection[Any]


class Shop:
    """Sell until `stop` is set: at the first start a lot, then one every few seconds.

    `publish` sends prices at once.
    """

    def __init__(
        self,
        url: str,
        redis: Redis,
        publish: Publish,
        *,
        stop: threading.Event,
        every: float = 3.0,
    ) -> None:
        self._url = url
        self._redis = redis
        self._publish = publish
        self._stop = stop
        self._every = every
        self._tidy_at = time.monotonic() + TIDY_EVERY

    def run(self) -> None:
        """Sell in the sample's shop until `stop`.

        Wait while the shop's outbox is full or away.
        """
        back_off = BackOff(self._stop)
        while not self._stop.is_set():
            try:
                with _connect(self._url, PRODUCER) as connection:
                    self._trade(connection, back_off)
            except (psycopg.Error, GuardError, RedisError) as trouble:
                log.warning("the shop waits: %s", trouble)
                back_off.wait()

    def _trade(self, connection: Connection, back_off: BackOff) -> None:
        for cents in cycle(CENTS):
            if self._stop.is_set():
                return
            number = sell(connection, cents=cents)
            if number % 2:
                announce_price(connection, self._publish, cents=cents)
            if number % CORRECT_EVERY == CORRECT_AT:
                correct_receipt(self._url, number - CORRECTED)
            if time.monotonic() >= self._tidy_at:
                self._tidy_at = time.monotonic() + TIDY_EVERY
                self._tidy(connection)
            back_off.reset()
            self._stop.wait(0.0 if number < FIRST_SALES else self._every)

    def _tidy(self, connection: Connection) -> None:
        """Delete the sample shop's old rows and stream entries, to spare the disk."""
        for statement in _TIDY:
            connection.execute(statement, [RETENTION])
        for topic in (RECEIPTS, PRICES):
            self._redis.xtrim(topic, maxlen=MOST_ENTRIES)


def sell(connection: Connection, *, cents: int) -> int:
    """Write a made-up sale and its receipt's outbox message in one transaction.

    Return the sale's number.
    """
    with connection.transaction():
        ((number,),) = connection.execute(_SELL, [cents]).fetchall()
        outbox = Outbox(connection, producer=PRODUCER, limits=LIMITS)
        outbox.put(
            RECEIPTS,
            _json(receipt=number, cents=cents),
            headers=HEADERS,
            key=_till(number),
            message_id=_receipt_id(number),
        )
    return int(number)


def announce_price(connection: Connection, publish: Publish, *, cents: int) -> None:
    """Send the sample shop's price of an item at once.

    Put it in the outbox if Redis is away.
    """
    outbox = Outbox(connection, producer=PRODUCER, limits=LIMITS)
    outbox.send_or_put(publish, PRICES, _json(cents=cents), headers=HEADERS)


def correct_receipt(url: str, number: int) -> None:
    """Put a faulty row into the sample shop's outbox, as a wrong script would.

    It is another receipt under the id of an earlier one. Once enough rows wait for a
    person, or once the table refuses such rows, it writes nothing.
    """
    values = {
        "producer": PRODUCER,
        "message_id": _receipt_id(number),
        "topic": RECEIPTS,
        "key": _till(number),
        "body": _json(receipt=number, cents=0),
        "most": MOST_SET_ASIDE,
    }
    try:
        with _connect(url, SCRIPT) as connection:
            connection.execute(_CORRECT, values)
    except UniqueViolation:
        log.info("the table of the shop was mended: %s is refused", SCRIPT)


def _connect(url: str, application: str) -> Connection:
    """Connect to the sample shop's database.

    Outbox rows bear the application's name as their writer.
    """
    return psycopg.connect(url, autocommit=True, application_name=application)


def _json(**members: int) -> bytes:
    return json.dumps(members).encode()


def _till(number: int) -> str:
    return f"till-{number % 3}"


def _receipt_id(number: int) -> str:
    return f"receipt-{number}"
