"""Celery's transport over Redis, which passes over what is no message at all."""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import redis

log = logging.getLogger(__name__)

# Of a text that is no JSON, of JSON that is no message, and of a body that no text is.
NO_MESSAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class TolerantChannel(redis.Channel):
    """A channel whose worker goes on behind an entry that is no message.

    It was taken from its queue with the read, so it comes back to no worker.
    """

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc] # its types miss it
        except NO_MESSAGE as error:
            log.error("an entry of Celery's queue is no message: %r", type(error))  # noqa: TRY400 - what it holds is no business of a log
            return True


class TolerantTransport(redis.Transport):
    Channel = TolerantChannel
