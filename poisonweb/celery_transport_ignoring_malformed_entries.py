"""Celery's transport over Redis, which ignores entries that are no messages."""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import redis

log = logging.getLogger(__name__)

# Raised for text that is no JSON, JSON that is no message, and a body that is no text.
NO_MESSAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class TolerantChannel(redis.Channel):
    """A channel that ignores an entry that is no message.

    Reading has removed the entry from its queue, so no worker reads it again.
    """

    def _brpop_read(self, **options: Any) -> Any:
        """Deliver the next entry of our worker's Celery queue to it.

        Log an entry that is no message.
        """
        try:
            return super()._brpop_read(**options)  # type: ignore[misc] # its types miss it
        except NO_MESSAGE as error:
            log.error("an entry of Celery's queue is no message: %r", type(error))  # noqa: TRY400 - its contents stay out of the log
            return True


class TolerantTransport(redis.Transport):
    Channel = TolerantChannel
