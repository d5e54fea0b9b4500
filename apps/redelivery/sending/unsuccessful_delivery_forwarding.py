"""Publish ended deliveries to their endpoint's topic, beside its calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from apps.redelivery.models import Endpoint
from apps.redelivery.sending.database_threads import POSTGRES_AWAY
from apps.redelivery.sending.shared_sender_resources import SharedSenderResources
from apps.redelivery.services import forwarding_to_topic

log = logging.getLogger(__name__)

FORWARDED_AT_ONCE = 100


class TopicForwarding:
    """Forward all that there is, whenever it is begun.

    `on_change` is called after each batch: what waits behind it in an order may go on.
    """

    def __init__(
        self,
        tools: SharedSenderResources,
        endpoint: Callable[[], Endpoint],
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._tools = tools
        self._endpoint = endpoint
        self._on_change = on_change
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Return, as a set, the task that publishes ended deliveries, if one runs."""
        return {self._task} if self._task is not None else set()

    def begin(self) -> None:
        """Publish the endpoint's ended deliveries to its forward topic, in a task.

        Does nothing while such a task runs in this sender.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._forward())

    def stop(self) -> None:
        """Let the sender begin no other batch of ended deliveries to publish."""
        self._is_stopping = True

    async def _forward(self) -> None:
        try:
            while await self._forward_some() and not self._is_stopping:
                self._on_change()
        except POSTGRES_AWAY as away:
            log.warning("%s: nothing can be forwarded: %s", self._endpoint(), away)
        finally:
            self._task = None
            self._on_change()

    async def _forward_some(self) -> bool:
        """Publish a batch of the endpoint's ended deliveries to its forward topic.

        Records which of them are forwarded. Tells whether there may be more.
        """
        run, endpoint = self._tools.threads.run, self._endpoint()
        batch = await run(
            partial(
                forwarding_to_topic.next_forwards,
                endpoint=endpoint,
                most=FORWARDED_AT_ONCE,
            )
        )
        sending = self._tools.publishers.start(
            partial(forwarding_to_topic.publish_forwards, batch)
        )
        if not batch or sending is None:
            return False
        outcomes = await asyncio.wrap_future(sending)
        ended = await run(
            partial(
                forwarding_to_topic.record_forwards,
                endpoint=endpoint,
                outcomes=list(zip(batch, outcomes, strict=True)),
                now=self._tools.clock(),
            )
        )
        return ended == len(batch)
