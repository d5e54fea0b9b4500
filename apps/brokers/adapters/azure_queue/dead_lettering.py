"""Dead-lettering in place of the Functions runtime, for queues without a function app.

A message that was handed out `maxDequeueCount` times and is visible again either failed
each time, or its last consumer is gone. It is first copied to the poison queue, byte
for byte, and then deleted from its own: a kill in between leaves it in both, never in
none.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from itertools import takewhile

from apps.brokers.adapters.azure_queue.azure_http_client import (
    AzureMessage,
    AzureRejected,
    AzureWire,
    unless_missing,
)
from apps.brokers.adapters.azure_queue.settings import AzureQueueSettings
from apps.core.errors import Refused

# Enough for a slow write to the poison queue and a slow delete.
HELD_SECONDS = 120
MOST_BATCHES = 20

_LOG = logging.getLogger(__name__)


class AzureDeadLettering:
    """Moves the messages of one queue that failed too often.

    Azure hands out the first messages of a queue, never one by its id. So this peeks
    first, which changes nothing, and takes the exhausted messages at the head of the
    queue. Those behind another message wait until its consumer settles it.
    """

    def __init__(self, wire: AzureWire, settings: AzureQueueSettings) -> None:
        self._wire = wire
        self._settings = settings

    def move(self) -> int:
        """Move exhausted messages to Azure's poison queue; return their number.

        In place of the Functions runtime and like it, `batchSize` at a time: the next
        batch starts when at most `newBatchThreshold` messages of the earlier batches
        are left.
        """
        moved, futures = 0, set[Future[bool]]()
        for _ in range(MOST_BATCHES):
            messages = self._take()
            if not messages:
                break
            futures |= {self._wire.submit(self._move, message) for message in messages}
            while len(futures) > self._settings.new_batch_threshold:
                done, futures = wait(futures, return_when=FIRST_COMPLETED)
                moved += sum(one.result() for one in done)
        return moved + sum(one.result() for one in futures)

    def _take(self) -> list[AzureMessage]:
        """Take the first messages of an Azure topic that were handed out too often."""
        queue, settings = self._settings.topic, self._settings
        look = partial(self._wire.peek, queue, count=settings.batch_size)
        first = unless_missing(look, otherwise=list[AzureMessage]())
        limit = settings.max_dequeue_count
        leading = list(takewhile(lambda one: one.dequeue_count >= limit, first))
        if not leading:
            return []
        messages = self._wire.get(queue, count=len(leading), hidden_for=HELD_SECONDS)
        # Other messages may be first by now. The count includes this delivery.
        for message in messages:
            if message.dequeue_count <= limit:
                self._give_back(message, seconds=0)
        return [message for message in messages if message.dequeue_count > limit]

    def _move(self, message: AzureMessage) -> bool:
        """Move a message to Azure's poison queue; return False if that is refused."""
        try:
            self._put(message)
        except Refused as refusal:
            _LOG.warning("A message was not dead-lettered: %s", refusal)
            pause = math.ceil(self._settings.visibility_timeout)
            self._give_back(message, seconds=pause)
            return False
        self._settle(message)
        return True

    def _put(self, message: AzureMessage) -> None:
        """Add a queue's exhausted message to its poison queue, created if missing."""
        queue = self._settings.poison_queue
        try:
            self._wire.put(queue, message.text)
        except AzureRejected as error:
            if not error.names_no_queue:
                raise
            self._wire.create_queue(queue)
            self._wire.put(queue, message.text)

    def _settle(self, message: AzureMessage) -> None:
        """Delete a moved message from its Azure topic; log it if others took it."""
        try:
            self._wire.delete(self._settings.topic, message.id, message.receipt)
        except AzureRejected as error:
            if not error.names_no_message:
                raise
            what = "%s of %s was taken by others while it was dead-lettered"
            _LOG.warning(what, message.id, self._settings.topic)

    def _give_back(self, message: AzureMessage, *, seconds: int) -> None:
        """Show a taken message in its topic again after so many seconds.

        Does nothing if others took it.
        """
        try:
            self._wire.hide(
                self._settings.topic, message.id, message.receipt, seconds=seconds
            )
        except AzureRejected as error:
            if not error.names_no_message:
                raise
