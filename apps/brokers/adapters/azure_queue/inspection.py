"""Look at Azure's queues, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from apps.brokers.adapter_contract import ConsumerPosition, Delivered, FoundTopic
from apps.brokers.adapters.azure_queue.azure_http_client import (
    LARGEST_PAGE,
    AzureMessage,
    AzureWire,
    unless_missing,
)
from apps.brokers.adapters.azure_queue.settings import (
    SUFFIX,
    AzureQueueSettings,
)
from apps.brokers.errors import QueueExpected

MOST_TOPICS = 10_000


class AzureTopicAdmin:
    """Admin of a queue and its poison queue; Azure does not know consumers."""

    def __init__(self, wire: AzureWire, settings: AzureQueueSettings) -> None:
        self._wire = wire
        self._queue = settings.poison_queue

    def consumers(self) -> list[ConsumerPosition]:
        """Return []: Azure stores no positions, and removes settled messages."""
        return []

    def depth(self) -> int | None:
        """Count Azure's poison queue; raise QueueExpected while it is missing."""
        count: Callable[[], int | None] = partial(self._wire.depth, self._queue)
        depth = unless_missing(count, otherwise=None)
        if depth is None:
            raise QueueExpected(
                f"There is no queue {self._queue} yet. Azure Functions creates "
                f"<queue>{SUFFIX} with the first dead letter."
            )
        return depth

    def oldest_at(self) -> datetime | None:
        """Return when the oldest visible poison came: Azure hides the others."""
        look = partial(self._wire.peek, self._queue, count=LARGEST_PAGE)
        messages = unless_missing(look, otherwise=list[AzureMessage]())
        return min((message.inserted_at for message in messages), default=None)

    def delivered(self) -> Delivered | None:
        """Return None: Azure counts no deliveries."""
        return None

    def close(self) -> None:
        """Close the connections to Azure."""
        self._wire.close()


class AzureBrokerAdmin:
    """Admin of all queues of one account."""

    def __init__(self, wire: AzureWire) -> None:
        self._wire = wire

    def ping(self) -> str:
        """Make Azure's cheapest request; name the account and the server."""
        server = self._wire.server() or "a server that does not say what it is"
        return f"Azure Storage Queues of {self._wire.account_name}: {server}"

    def discover(self) -> list[FoundTopic]:
        """List the queues that are no poison queue of another, with depths."""
        names = self._queue_names()
        counted = zip(names, self._wire.map(self._depth, names), strict=True)
        depths = {name: depth for name, depth in counted if depth is not None}
        return [
            FoundTopic(
                name=name,
                depth=depth,
                dead_letter_queue=queue if queue in depths else "",
                dead_letters=depths.get(queue),
            )
            for name, depth in sorted(depths.items())
            if not _is_queue_of_another(name, depths)
            for queue in [name + SUFFIX]
        ]

    def close(self) -> None:
        """Close the connections to Azure."""
        self._wire.close()

    def _queue_names(self) -> list[str]:
        """List the names of the Azure account's queues by pages, up to a limit."""
        names, marker = self._wire.queues()
        while marker and len(names) < MOST_TOPICS:
            more, marker = self._wire.queues(after=marker)
            names += more
        return names[:MOST_TOPICS]

    def _depth(self, queue: str) -> int | None:
        """Count a queue's messages at Azure; None if it was deleted meanwhile."""
        count: Callable[[], int | None] = partial(self._wire.depth, queue)
        return unless_missing(count, otherwise=None)


def _is_queue_of_another(name: str, depths: dict[str, int]) -> bool:
    """Tell whether an Azure queue is the poison queue of another of these queues."""
    return name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in depths
