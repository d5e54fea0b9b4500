"""Read a poison queue and hide from others what was read."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from functools import partial

from apps.brokers.adapter_contract import BATCH_BYTES, DeadLetter
from apps.brokers.adapters.azure_queue import message_text
from apps.brokers.adapters.azure_queue.azure_http_client import (
    LARGEST_PAGE,
    AzureMessage,
    AzureRejected,
    AzureWire,
    unless_missing,
)
from apps.brokers.adapters.azure_queue.dead_lettering import AzureDeadLettering
from apps.brokers.adapters.azure_queue.settings import AzureQueueSettings
from apps.core.errors import Unavailable

SHORTEST_PAUSE = 0.1
# Lets a reader that holds very many messages come to an end.
MOST_CALLS = 1_000

_LOG = logging.getLogger(__name__)


class AzureDeadLetterReader:
    """Reader of a poison queue, which hides from others what it has read.

    An unacknowledged message becomes visible again after a while; the reader then takes
    it once more, and keeps it. Each time the receipt is another one: only the last is
    valid.
    """

    def __init__(self, wire: AzureWire, settings: AzureQueueSettings) -> None:
        self._wire = wire
        self._settings = settings
        self._queue = settings.poison_queue
        self._receipts: dict[str, str] = {}
        self._handed_out: set[str] = set()
        self._pause = SHORTEST_PAUSE
        self._asked_at = 0.0
        self._dead_lettering = AzureDeadLettering(wire, settings)

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        """Return Azure's next dead letters, hidden.

        Waits `wait` seconds for the first.
        """
        deadline = time.monotonic() + wait
        try:
            while not (letters := self._read_batch(limit)):
                if not self._pause_until_next(deadline):
                    return []
        except Unavailable:
            # A lost answer may have hidden some messages: they become visible in time.
            self._handed_out.clear()
            raise
        self._pause = SHORTEST_PAUSE
        return letters

    def peek(self, *, limit: int) -> list[DeadLetter]:
        """Return Azure's first visible dead letters, oldest first; hide none."""
        look = partial(self._wire.peek, self._queue, count=limit)
        messages = unless_missing(look, otherwise=list[AzureMessage]())
        messages.sort(key=lambda message: message.inserted_at)
        return [self._letter(message) for message in messages]

    def acknowledge(self, handles: Sequence[str]) -> None:
        """Delete these dead letters from Azure's poison queue."""
        self._wire.map(self._delete, [h for h in handles if h in self._receipts])

    def extend(self, handles: Sequence[str]) -> None:
        """Hide these dead letters at Azure for another visibility timeout."""
        keep = partial(self._hide, seconds=self._settings.hidden_for)
        self._wire.map(keep, [h for h in handles if h in self._receipts])

    def release(self, handles: Sequence[str]) -> None:
        """Show these dead letters of Azure's to all readers again at once."""
        ours = [handle for handle in handles if handle in self._receipts]
        self._wire.map(partial(self._hide, seconds=0), ours)
        for handle in ours:
            self._forget(handle)

    def dead_letter_exhausted(self) -> int:
        """Move an Azure topic's exhausted messages to its poison queue; count them."""
        return self._dead_lettering.move()

    def close(self) -> None:
        """Close the connections to Azure."""
        self._wire.close()

    def _read_batch(self, limit: int) -> list[DeadLetter]:
        """Take enough pages of Azure's dead letters; return the ones not yet read."""
        letters, size = list[DeadLetter](), 0
        for _ in range(MOST_CALLS):
            if len(letters) >= limit or size >= BATCH_BYTES:
                break
            messages = self._take(min(LARGEST_PAGE, limit - len(letters)))
            if not messages:
                break
            new_letters = [self._letter(one) for one in messages if self._is_new(one)]
            letters += new_letters
            size += sum(letter.size for letter in new_letters)
        return letters

    def _take(self, count: int) -> list[AzureMessage]:
        """Take a page of messages and hide them; [] while there is no queue."""
        self._asked_at = time.monotonic()
        hidden_for = self._settings.hidden_for
        get = partial(self._wire.get, self._queue, count=count, hidden_for=hidden_for)
        return unless_missing(get, otherwise=[])

    def _is_new(self, message: AzureMessage) -> bool:
        """Store a dead letter's receipt; tell whether it is handed out first now."""
        self._receipts[message.id] = message.receipt
        if message.id in self._handed_out:
            return False
        self._handed_out.add(message.id)
        return True

    def _pause_until_next(self, deadline: float) -> bool:
        """Wait until the dead-letter queue may be polled again.

        Waits at most until the deadline, and returns False where that comes first. The
        pause on an empty queue grows up to `maxPollingInterval`.
        """
        pause = min(self._pause, self._settings.max_polling_interval)
        until = self._asked_at + pause * random.uniform(0.8, 1.2)  # noqa: S311
        now = time.monotonic()
        time.sleep(max(0.0, min(until, deadline) - now))
        if until > deadline:
            return False
        self._pause = pause * 2
        return True

    def _letter(self, message: AzureMessage) -> DeadLetter:
        """Decode a message of Azure as a dead letter."""
        content = message_text.read(
            message.text,
            expected=self._settings.message_encoding,
            usual=self._settings.usual_encoding,
        )
        parts = (part for header in content.headers for part in header)
        return DeadLetter(
            queue=self._queue,
            bookmark=message.id,
            body=content.body,
            headers=content.headers,
            size=len(content.body) + sum(map(len, parts)),
            enqueued_at=message.inserted_at,
        )

    def _delete(self, handle: str) -> None:
        """Delete a dead letter from Azure, unless others took it; drop its receipt."""
        try:
            self._wire.delete(self._queue, handle, self._receipts[handle])
        except AzureRejected as error:
            self._accept_loss(handle, error)
        self._forget(handle)

    def _hide(self, handle: str, *, seconds: int) -> None:
        """Hide a dead letter at Azure for some seconds, and store its new receipt."""
        receipt = self._receipts[handle]
        try:
            renewed = self._wire.hide(self._queue, handle, receipt, seconds=seconds)
            self._receipts[handle] = renewed
        except AzureRejected as error:
            self._accept_loss(handle, error)

    def _accept_loss(self, handle: str, error: AzureRejected) -> None:
        """Log that another reader took or removed a message after its time-out.

        Raises any other error. If the message still exists, it comes again and is
        recognized by its id.
        """
        if not (error.names_no_message or error.names_no_queue):
            raise error
        _LOG.info("%s of %s is not ours any more", handle, self._queue)

    def _forget(self, handle: str) -> None:
        """Forget the receipt of a dead letter of Azure's."""
        self._receipts.pop(handle, None)
        self._handed_out.discard(handle)
