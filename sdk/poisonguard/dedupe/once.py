"""The base of all windows: one copy of a message runs at a time.

A window runs between the guard and the handler, at each attempt. Where the handler must
not run, the window raises a `NotRun`, and the message flow decides the outcome.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from poisonguard.contract import redrive_id_of
from poisonguard.readers import Reader

if TYPE_CHECKING:
    from poisonguard.handling.healthy_path import (
        AsyncHandler,
        Handle,
        HandleAsync,
        Handler,
    )
    from poisonguard.outcome import Outcome

log = logging.getLogger(__name__)

KEY_SIZE = 16  # bytes, however long an id is


class NotRun(BaseException):
    """The handler was not run; no Exception, which would be a failure."""


class Copy(NotRun):
    """The message was handled before."""


class Busy(NotRun):
    """A copy of the message is being handled."""


class Unmarked(NotRun):
    """The window cannot tell now whether the message was handled before."""


class Window(ABC):
    """The value of `Guard(dedupe=...)`; several guards may share one."""

    @abstractmethod
    def open(self, *, topic: str, consumer_group: str, reader: Reader) -> Once:
        """Return the `Once` of one guard in this dedupe window."""


class Once(ABC):
    """Run the handlers of one guard, one copy of a message at a time.

    Any thread and task may use it. A message without an identity is run each time.
    """

    def __init__(self, reader: Reader, *, by_bookmark: bool) -> None:
        self._reader = reader
        self._by_bookmark = by_bookmark
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget running copies of messages, the parent's, in a forked child."""
        self._lock = threading.Lock()
        self._running: set[bytes] = set()
        self._duplicates = 0
        self._without_id = 0

    def around(self, handle: Handle) -> Handle:
        """Wrap a guard's `handle`, so that `run` keeps copies from being handled."""
        run = self.run

        def handle_once(message: Any, handler: Handler) -> Outcome:
            return handle(message, partial(run, handler))

        return handle_once

    def around_async(self, handle: HandleAsync) -> HandleAsync:
        """Wrap a guard's `handle_async`, so that `run_async` keeps copies out."""
        run = self.run_async

        def handle_once(
            message: Any, handler: AsyncHandler
        ) -> Coroutine[Any, Any, Outcome]:
            return handle(message, partial(run, handler))

        return handle_once

    @abstractmethod
    def run(self, handler: Callable[[Any], object], message: Any) -> None:
        """Run a message's handler once, or raise a `NotRun` for a copy.

        What the handler returns is dropped.
        """

    @abstractmethod
    async def run_async(self, handler: AsyncHandler, message: Any) -> None:
        """Await a message's handler once, or raise a `NotRun` for a copy.

        What the handler returns is dropped.
        """

    def facts(self) -> dict[str, object]:
        """Return the dedupe window's counts, its part of the guard's `health()`."""
        return {"duplicates": self._duplicates, "without_id": self._without_id}

    @property
    def warnings(self) -> list[str]:
        """List problems of the dedupe window with their remedies, for `health()`."""
        number = self._without_id
        if not number:
            return []
        return [
            f"Messages without a message id, of which copies cannot be known: {number}."
            " Have their producer set one, and the reader tell it."
        ]

    def _key(self, message: Any) -> bytes | None:
        """Return the dedupe key of all copies of a message; None without an id."""
        try:
            key = self._read_key(message)
        except Exception:  # noqa: BLE001 - whatever a reader raises
            key = None
        if key is None:
            self._note_missing_id()
        return key

    def _read_key(self, message: Any) -> bytes | None:
        """Hash the message id, or the bookmark if that counts; None without either."""
        reader = self._reader
        name, kind = reader.message_id(message), b""
        if not name and self._by_bookmark and reader.has_identity(message):
            name, kind = reader.bookmark(message), b"bookmark"
        if not name or not isinstance(name, str):
            return None
        redrive = reader.redrive(message)
        sent_by = redrive_id_of(redrive) if redrive is not None else None
        return blake2b(
            name.encode("utf-8", "surrogatepass"),
            digest_size=KEY_SIZE,
            key=(sent_by or "").encode(),
            person=kind,
        ).digest()

    def _note_missing_id(self) -> None:
        """Count a message without an id; log the first one."""
        with self._lock:
            self._without_id += 1
            is_first = self._without_id == 1
        if is_first:
            log.warning("%s", self.warnings[0])

    def _counted_copy(self) -> Copy:
        """Count a copy of a handled message; return the `Copy` to raise for it."""
        with self._lock:
            self._duplicates += 1
        return Copy()

    @contextmanager
    def _claim(self, key: bytes | None) -> Iterator[None]:
        """Run the block if no copy of the message runs in this process, or raise Busy.

        No copy runs beside the block.
        """
        if key is None:
            yield
            return
        with self._lock:
            if key in self._running:
                raise Busy
            self._running.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(key)
