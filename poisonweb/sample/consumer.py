"""Reads one topic in a consumer group, and has a guard look after each message.

What the guard is done with is settled with XACK. What it releases stays pending and is
read again a moment later, as is what was handed to us before we were killed.

The ledger is written beside the guard and not by its word: a line for each attempt that
failed, and one for a success that matters, before the guard knows of either. Only a
message that took the whole process with it is noted when the guard gives it up.
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
from poisonweb.sample.guards import Guards
from poisonweb.sample.ledger import Ledger, What
from poisonweb.sample.subscriptions import Subscription

log = logging.getLogger(__name__)

BATCH = 10
BLOCK_MILLISECONDS = 500
LOOK_BACK_SECONDS = 1.0
CLOSE_SECONDS = 1.0
REDRIVE = REDRIVE_HEADER.encode()

NEW = ">"

Entry = tuple[bytes, dict[Any, bytes]]  # as redis-py returns it: bookmark and fields


class Handler(Protocol):
    @property
    def version(self) -> str: ...

    def handle(self, body: bytes) -> None:
        """Raise whatever there is to raise."""


class Consumer:
    def __init__(
        self,
        redis: Redis,
        subscription: Subscription,
        handler: Handler,
        *,
        guards: Guards,
        ledger: Ledger,
        stop: threading.Event,
    ) -> None:
        self._redis = redis
        self._of = subscription
        self._handler = handler
        self._guards = guards
        self._ledger = ledger
        self._stop = stop
        self._back_off = BackOff(stop)
        self._failed = b""  # the bookmark of what failed last, in this process

    def run(self) -> None:
        """Work until told to stop; each release of the handler has its own guard."""
        while not self._stop.is_set():
            guard = self._guards.make(self._of, version=self._handler.version)
            try:
                guard.start()
                self._consume(guard)
            except GuardError as trouble:
                log.warning("%s waits for Poisonweb: %s", self._of.client_name, trouble)
                self._back_off.wait()
            finally:
                guard.close(CLOSE_SECONDS)

    def _consume(self, guard: Guard) -> None:
        log.info("%s runs release %s", self._of.client_name, guard.settings.version)
        while not self._is_over(guard):
            try:
                self._go_through(guard)
            except RedisError as trouble:
                log.warning("%s waits for Redis: %s", self._of.client_name, trouble)
                self._back_off.wait()

    def _is_over(self, guard: Guard) -> bool:
        is_replaced = guard.settings.version != self._handler.version
        return is_replaced or self._stop.is_set()

    def _go_through(self, guard: Guard) -> None:
        """Handle what was handed to us and never settled, then what is new.

        It ends when something that the guard released is to be read again.
        """
        self._make_group()
        released = self._handle_all(guard, self._unsettled(), again=True)
        look_back_at = time.monotonic() + LOOK_BACK_SECONDS
        while not self._is_over(guard):
            if released and time.monotonic() >= look_back_at:
                return
            released |= self._handle_all(guard, self._read(NEW), again=False)

    # The broker

    def _make_group(self) -> None:
        try:
            self._redis.xgroup_create(
                self._of.topic, self._of.consumer_group, id="0", mkstream=True
            )
        except ResponseError as refusal:
            if not str(refusal).startswith("BUSYGROUP"):
                raise

    def _unsettled(self) -> Iterator[Entry]:
        cursor = "0"
        while batch := self._read(cursor):
            yield from batch
            cursor = batch[-1][0].decode()

    def _read(self, cursor: str) -> list[Entry]:
        streams: Any = self._redis.xreadgroup(
            self._of.consumer_group,
            self._of.client_name,
            {self._of.topic: cursor},
            count=BATCH,
            block=BLOCK_MILLISECONDS,
        )
        self._back_off.reset()
        return [entry for _, entries in streams for entry in entries]

    def _settle(self, entry: Entry) -> None:
        self._redis.xack(self._of.topic, self._of.consumer_group, entry[0])

    # The message

    def _handle_all(
        self, guard: Guard, entries: Iterable[Entry], *, again: bool
    ) -> bool:
        """Tell whether the guard released any of them."""
        released = False
        for entry in entries:
            if self._is_over(guard):
                break
            if self._is_done_with(guard, entry, again=again):
                self._settle(entry)
            else:
                released = True
        return released

    def _is_done_with(self, guard: Guard, entry: Entry, *, again: bool) -> bool:
        bookmark, fields = entry
        if not fields:
            log.warning("%s was deleted before it was handled", bookmark.decode())
            return True
        outcome = guard.handle(entry, partial(self._attempt, again=again))
        if outcome is Outcome.POISONED and bookmark != self._failed:
            self._note_failure(entry)
        return outcome.settles

    def _attempt(self, entry: Entry, *, again: bool) -> None:
        bookmark, fields = entry
        try:
            self._handler.handle(fields.get(b"body", b""))
        except Exception as error:
            self._failed = bookmark
            self._note_failure(entry, error=type(error).__name__)
            raise
        # Begun before, it may have been noted as failed before.
        if again or bookmark == self._failed or REDRIVE in fields:
            self._note(What.HANDLED, entry)

    # The ledger

    def _note_failure(self, entry: Entry, *, error: str = "") -> None:
        what = What.FAILED_AGAIN if REDRIVE in entry[1] else What.FAILED
        self._note(what, entry, error=error)

    def _note(self, what: What, entry: Entry, *, error: str = "") -> None:
        bookmark, fields = entry
        self._ledger.write(
            what,
            topic=self._of.topic,
            bookmark=bookmark.decode(),
            redrive=fields.get(REDRIVE, b"").decode("utf-8", "replace"),
            error=error,
        )
