"""Dead-lettering in place of the Functions runtime, for queues without a function app.

A message that was handed out `maxDequeueCount` times and is visible again has failed
as often, or whoever had it last is gone. It goes to the poison queue to the letter, and
only then out of its own: killed in between, it is in both, never in none.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from itertools import takewhile

from apps.brokers.adapters.azure_queue.settings import AzureQueueSettings
from apps.brokers.adapters.azure_queue.wire import (
    AzureMessage,
    AzureRejected,
    AzureWire,
    if_there,
)
from apps.core.errors import Refused

# Time enough to write a message to the poison queue and to delete it, both slowly.
HELD_SECONDS = 120
MOST_BATCHES = 20

_LOG = logging.getLogger(__name__)


class AzureDeadLettering:
    """Moves the messages of one queue that failed too often.

    Nothing in Azure takes a message by its name, only those that come first. So this
    looks first, which changes nothing, and takes as many as lead the queue and are used
    up: behind a message that is not, they wait until its consumers took that away.
    """

    def __init__(self, wire: AzureWire, settings: AzureQueueSettings) -> None:
        self._wire = wire
        self._settings = settings

    def move(self) -> int:
        """Move some, `batchSize` at a time, and give their number.

        As in the runtime, the next batch is taken when no more than
        `newBatchThreshold` are left of those before.
        """
        moved, futures = 0, set[Future[bool]]()
        for _ in range(MOST_BATCHES):
            messages = self._take()
            if not messages:
                break
            futures |= {self._wire.later(self._move, message) for message in messages}
            while len(futures) > self._settings.new_batch_threshold:
                done, futures = wait(futures, return_when=FIRST_COMPLETED)
                moved += sum(one.result() for one in done)
        return moved + sum(one.result() for one in futures)

    def _take(self) -> list[AzureMessage]:
        queue, settings = self._settings.topic, self._settings
        look = partial(self._wire.peek, queue, count=settings.batch_size)
        first = if_there(look, otherwise=list[AzureMessage]())
        limit = settings.max_dequeue_count
        leading = list(takewhile(lambda one: one.dequeue_count >= limit, first))
        if not leading:
            return []
        messages = self._wire.get(queue, count=len(leading), hidden_for=HELD_SECONDS)
        # Others may have come first in the meantime. The count includes this time.
        for message in messages:
            if message.dequeue_count <= limit:
                self._give_back(message, seconds=0)
        return [message for message in messages if message.dequeue_count > limit]

    def _move(self, message: AzureMessage) -> bool:
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
        queue = self._settings.poison_queue
        try:
            self._wire.put(queue, message.text)
        except AzureRejected as error:
            if not error.names_no_queue:
                raise
            self._wire.make(queue)
            self._wire.put(queue, message.text)

    def _settle(self, message: AzureMessage) -> None:
        try:
            self._wire.delete(self._settings.topic, message.id, message.receipt)
        except AzureRejected as error:
            if not error.names_no_message:
                raise
            what = "%s of %s was taken by others while it was dead-lettered"
            _LOG.warning(what, message.id, self._settings.topic)

    def _give_back(self, message: AzureMessage, *, seconds: int) -> None:
        try:
            self._wire.hide(
                self._settings.topic, message.id, message.receipt, seconds=seconds
            )
        except AzureRejected as error:
            if not error.names_no_message:
                raise
