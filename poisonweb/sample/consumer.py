"""Read one topic in a consumer group, and handle every message with a guard.

A message that the guard settles gets an XACK. One that it releases stays pending and is
read again a moment later, as are messages that were in flight when we were killed.

The consumer writes its ledger independently of the guard: a line for every failed
attempt, and one for a success that matters, before the guard knows the result. Only for
a message that killed the process it writes the line when the guard gives it up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from poisonguard import Guard, GuardError, Outcome
from poisonguard.contract import REDRIVE_HEADER
from poisonweb.sample.back_off import BackOff
from poisonweb.sample.consumers_and_their_topics import SampleSubscription
from poisonweb.sample.event_ledger import Ledger, What
from poisonweb.sample.guards import Guards

log = logging.getLogger(__name__)

BATCH = 10
BLOCK_MILLISECONDS = 500
LOOK_BACK_SECONDS = 1.0
CLOSE_SECONDS = 1.0
REDRIVE = REDRIVE_HEADER.encode()

NEW = ">"

Entry = tuple[bytes, dict[Any, bytes]]  # as redis-py returns it: bookmark and fields


class MessageHandler(Protocol):
    @property
    def version(self) -> str: ...

    def handle(self, body: bytes) -> None:
        """Handle a message of the sample, or raise any exception."""


class SampleConsumer:
    def __init__(
        self,
        redis: Redis,
        subscription: SampleSubscription,
        handler: MessageHandler,
        *,
        guards: Guards,
        ledger: Ledger,
        stop: threading.Event,
    ) -> None:
        self._redis = redis
        self._subscription = subscription
        self._handler = handler
        self._guards = guards
        self._ledger = ledger
        self._stop = stop
        self._back_off = BackOff(stop)
        self._last_failed = b""  # the bookmark of this process's last failed message

    def run(self) -> None:
        """Consume the sample's messages until `stop`.

        Each release of the handler has a guard.
        """
        while not self._stop.is_set():
            guard = self._guards.make(self._subscription, version=self._handler.version)
            try:
                guard.start()
                self._consume_until_replaced(guard)
            except GuardError as trouble:
                log.warning(
                    "%s waits for Poisonweb: %s",
                    self._subscription.client_name,
                    trouble,
                )
                self._back_off.wait()
            finally:
                guard.close(CLOSE_SECONDS)

    def _consume_until_replaced(self, guard: Guard) -> None:
        """Handle the sample's messages until the handler has another release.

        Return when the program stops, too.
        """
        log.info(
            "%s runs release %s", self._subscription.client_name, guard.settings.version
        )
        while not self._is_over(guard):
            try:
                self._read_and_handle(guard)
            except RedisError as trouble:
                log.warning(
                    "%s waits for Redis: %s", self._subscription.client_name, trouble
                )
                self._back_off.wait()

    def _is_over(self, guard: Guard) -> bool:
        """Check if the sample's handler has another release, or the program stops."""
        is_replaced = guard.settings.version != self._handler.version
        return is_replaced or self._stop.is_set()

    def _read_and_handle(self, guard: Guard) -> None:
        """Handle the sample's pending messages of its Redis stream, then new ones.

        Return when it is time to read released messages again, or the program stops.
        """
        self._make_group()
        released = self._handle_all(guard, self._unsettled(), is_redelivered=True)
        look_back_at = time.monotonic() + LOOK_BACK_SECONDS
        while not self._is_over(guard):
            if released and time.monotonic() >= look_back_at:
                return
            released |= self._handle_all(guard, self._read(NEW), is_redelivered=False)

    # The broker

    def _make_group(self) -> None:
        """Create the sample's consumer group of a Redis stream, unless it exists."""
        try:
            self._redis.xgroup_create(
                self._subscription.topic,
                self._subscription.consumer_group,
                id="0",
                mkstream=True,
            )
        except ResponseError as refusal:
            if not str(refusal).startswith("BUSYGROUP"):
                raise

    def _unsettled(self) -> Iterator[Entry]:
        """Yield the sample's messages delivered to this consumer and not settled."""
        cursor = "0"
        while batch := self._read(cursor):
            yield from batch
            cursor = batch[-1][0].decode()

    def _read(self, cursor: str) -> list[Entry]:
        """Read a batch from the sample's stream: new messages at ">", else pending."""
        streams: Any = self._redis.xreadgroup(
            self._subscription.consumer_group,
            self._subscription.client_name,
            {self._subscription.topic: cursor},
            count=BATCH,
            block=BLOCK_MILLISECONDS,
        )
        self._back_off.reset()
        return [entry for _, entries in streams for entry in entries]

    def _settle(self, entry: Entry) -> None:
        """Acknowledge a message of the sample's Redis stream in the consumer group."""
        self._redis.xack(
            self._subscription.topic, self._subscription.consumer_group, entry[0]
        )

    # The message

    def _handle_all(
        self, guard: Guard, entries: Iterable[Entry], *, is_redelivered: bool
    ) -> bool:
        """Have the guard handle messages of the sample; settle those it is done with.

        Stop early at a new release or the program's stop. Return whether the guard
        released any.
        """
        released = False
        for entry in entries:
            if self._is_over(guard):
                break
            if self._is_done_with(guard, entry, is_redelivered=is_redelivered):
                self._settle(entry)
            else:
                released = True
        return released

    def _is_done_with(
        self, guard: Guard, entry: Entry, *, is_redelivered: bool
    ) -> bool:
        """Have the guard handle a sample's message; return whether to settle it."""
        bookmark, fields = entry
        if not fields:
            log.warning("%s was deleted before it was handled", bookmark.decode())
            return True
        outcome = guard.handle(
            entry, partial(self._attempt, is_redelivered=is_redelivered)
        )
        if outcome is Outcome.POISONED and bookmark != self._last_failed:
            self._note_failure(entry)
        return outcome.settles

    def _attempt(self, entry: Entry, *, is_redelivered: bool) -> None:
        """Try to handle a message of the sample; raise what the handler raises.

        Write a failure, or a redelivered or redriven message's success, to the ledger.
        """
        bookmark, fields = entry
        try:
            self._handler.handle(fields.get(b"body", b""))
        except Exception as error:
            self._last_failed = bookmark
            self._note_failure(entry, error=type(error).__name__)
            raise
        # A message that was started before may have a line as failed.
        if is_redelivered or bookmark == self._last_failed or REDRIVE in fields:
            self._note(What.HANDLED, entry)

    # The ledger

    def _note_failure(self, entry: Entry, *, error: str = "") -> None:
        """Write a failure of a message to the sample's ledger.

        It is the message's first, or one after a redrive.
        """
        what = What.FAILED_AGAIN if REDRIVE in entry[1] else What.FAILED
        self._note(what, entry, error=error)

    def _note(self, what: What, entry: Entry, *, error: str = "") -> None:
        """Write to the sample's ledger what happened to a message."""
        bookmark, fields = entry
        self._ledger.write(
            what,
            topic=self._subscription.topic,
            bookmark=bookmark.decode(),
            redrive=fields.get(REDRIVE, b"").decode("utf-8", "replace"),
            error=error,
        )
