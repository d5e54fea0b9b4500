"""Reads one topic in a consumer group and gives up on what its handler cannot do.

1. A message is handled, or tried again when the back end timed out.
2. What became of it goes into the ledger, if it is worth a line.
3. Then it is settled: with XACK, or with XADD to the dead-letter queue and XACK in one.

Killed anywhere in between, it was handed the message and has not settled it, so it
reads it again at the next start. A redriven message is settled when the ledger says
that it was handled; the courier confirms what the ledger says, however much later.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from poisonguard import contract
from poisonguard.contract import Cause
from poisonweb.sample.back_off import BackOff
from poisonweb.sample.counters import Counters
from poisonweb.sample.ledger import Ledger, What
from poisonweb.sample.subscriptions import Subscription

log = logging.getLogger(__name__)

BATCH = 10
BLOCK_MILLISECONDS = 500
ATTEMPTS = 3
RETRY_SECONDS = 0.1
REDRIVE = contract.REDRIVE_HEADER.encode()

NEW = ">"


class Handler(Protocol):
    @property
    def version(self) -> str: ...

    def handle(self, body: bytes) -> None:
        """Raise whatever there is to raise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """One message as it was handed to us; `again` when that is not the first time."""

    bookmark: str
    fields: dict[Any, bytes]
    again: bool

    @property
    def redrive(self) -> str:
        return self.fields.get(REDRIVE, b"").decode("utf-8", "replace")

    @property
    def body(self) -> bytes:
        return self.fields.get(b"body", b"")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How it ended: without an error it was handled."""

    attempts: int
    error: Exception | None = None


class Consumer:
    def __init__(
        self,
        redis: Redis,
        subscription: Subscription,
        handler: Handler,
        *,
        ledger: Ledger,
        counters: Counters,
        stop: threading.Event,
    ) -> None:
        self._redis = redis
        self._of = subscription
        self._handler = handler
        self._ledger = ledger
        self._counters = counters
        self._stop = stop
        self._back_off = BackOff(stop)

    def run(self) -> None:
        while not self._stop.is_set():
            try:
                self._consume()
            except RedisError as trouble:
                log.warning("%s waits for Redis: %s", self._of.client_name, trouble)
                self._back_off.wait()

    def _consume(self) -> None:
        """Go through what was handed to us and never settled, then on to new ones."""
        self._make_group()
        for cursor in ("0", NEW):
            for delivery in self._deliveries(cursor):
                self._process(delivery)
                if self._stop.is_set():
                    return

    def _make_group(self) -> None:
        try:
            self._redis.xgroup_create(
                self._of.topic, self._of.consumer_group, id="0", mkstream=True
            )
        except ResponseError as refusal:
            if not str(refusal).startswith("BUSYGROUP"):
                raise

    def _deliveries(self, cursor: str) -> Iterator[Delivery]:
        """Yield deliveries for ever from NEW on, and else until there are no more."""
        while not self._stop.is_set():
            batch = self._read(cursor)
            self._back_off.reset()
            yield from batch
            if cursor != NEW:
                if not batch:
                    return
                cursor = batch[-1].bookmark

    def _read(self, cursor: str) -> list[Delivery]:
        streams: Any = self._redis.xreadgroup(
            self._of.consumer_group,
            self._of.client_name,
            {self._of.topic: cursor},
            count=BATCH,
            block=BLOCK_MILLISECONDS,
        )
        return [
            Delivery(bookmark=bookmark.decode(), fields=fields, again=cursor != NEW)
            for _, entries in streams
            for bookmark, fields in entries
        ]

    def _process(self, delivery: Delivery) -> None:
        if not delivery.fields:
            log.warning("%s was deleted before it was handled", delivery.bookmark)
            self._acknowledge(delivery)
            return
        started = time.monotonic()
        verdict = self._attempt(delivery)
        if verdict.error is None:
            self._settle(delivery)
        else:
            self._give_up(delivery, verdict.error, verdict.attempts)
        self._counters.add(
            self._of.topic,
            failed=verdict.error is not None,
            retried=verdict.attempts - 1,
            seconds=time.monotonic() - started,
        )

    def _attempt(self, delivery: Delivery) -> Verdict:
        attempts = 0
        while True:
            attempts += 1
            try:
                self._handler.handle(delivery.body)
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                if attempts == ATTEMPTS or not isinstance(error, TimeoutError):
                    return Verdict(attempts=attempts, error=error)
            else:
                return Verdict(attempts=attempts)
            self._stop.wait(RETRY_SECONDS * 2**attempts)

    def _settle(self, delivery: Delivery) -> None:
        # Begun before, it may have been noted as failed before.
        if delivery.redrive or delivery.again:
            self._note(What.HANDLED, delivery)
        self._acknowledge(delivery)

    def _acknowledge(self, delivery: Delivery) -> None:
        self._redis.xack(self._of.topic, self._of.consumer_group, delivery.bookmark)

    def _give_up(self, delivery: Delivery, error: Exception, attempts: int) -> None:
        what = What.FAILED_AGAIN if delivery.redrive else What.FAILED
        self._note(what, delivery, error=type(error).__name__)
        letter: dict[Any, Any] = delivery.fields | self._story(
            delivery, error, attempts
        )
        move = self._redis.pipeline(transaction=True)
        move.xadd(self._of.dead_letter_queue, letter)
        move.xack(self._of.topic, self._of.consumer_group, delivery.bookmark)
        move.execute()

    def _note(self, what: What, delivery: Delivery, *, error: str = "") -> None:
        self._ledger.write(
            what,
            topic=self._of.topic,
            bookmark=delivery.bookmark,
            redrive=delivery.redrive,
            error=error,
        )

    def _story(
        self, delivery: Delivery, error: Exception, attempts: int
    ) -> dict[bytes, bytes]:
        """Say why we gave up, in the headers that Poisonweb reads."""
        told = {
            contract.CAUSE_HEADER: cause_of(error).value,
            contract.EXCEPTION_TYPE_HEADER: type(error).__qualname__,
            contract.EXCEPTION_MESSAGE_HEADER: str(error),
            contract.EXCEPTION_TRACEBACK_HEADER: "".join(
                traceback.format_exception(error)
            ),
            contract.ORIGINAL_BOOKMARK_HEADER: delivery.bookmark,
            contract.CONSUMER_GROUP_HEADER: self._of.consumer_group,
            contract.CLIENT_NAME_HEADER: self._of.client_name,
            contract.ATTEMPTS_HEADER: str(attempts),
            contract.FAILED_AT_HEADER: datetime.now(UTC).isoformat(),
            contract.HANDLER_VERSION_HEADER: self._handler.version,
        }
        return {
            name.encode(): text.encode("utf-8", "replace")
            for name, text in told.items()
        }


def cause_of(error: Exception) -> Cause:
    if isinstance(error, TimeoutError):
        return Cause.EXHAUSTED
    if isinstance(error, UnicodeDecodeError):
        return Cause.UNDECODABLE
    return Cause.FATAL
