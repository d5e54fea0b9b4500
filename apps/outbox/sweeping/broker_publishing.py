"""Publish the messages of an outbox through the adapter of its broker."""

from __future__ import annotations

from collections.abc import Sequence

from apps.brokers import adapters
from apps.brokers.adapter_contract import (
    Capabilities,
    Outbound,
    OutcomeKind,
    Publisher,
    PublishOutcome,
)
from apps.brokers.models import Broker
from apps.brokers.services.topics_and_routing_publisher import settings_of
from apps.core.errors import Invalid, Refused, Unavailable
from poisonguard.errors import Away
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendKind, SendOutcome

_KINDS = {
    OutcomeKind.SENT: SendKind.SENT,
    OutcomeKind.DUPLICATE: SendKind.SENT,
    OutcomeKind.REFUSED: SendKind.REFUSED,
    OutcomeKind.UNKNOWN: SendKind.UNKNOWN,
    OutcomeKind.UNSENT: SendKind.UNSENT,
}


class BrokerPublishing:
    """A `poisonguard.outbox.outcome.Publish`; it belongs to one thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._publisher: Publisher | None = None

    def __call__(self, messages: Sequence[OutboxMessage]) -> list[SendOutcome]:
        """Publish an outbox's messages to its registered broker, in order.

        Raises Away if none can be.
        """
        try:
            adapter = adapters.adapter(self._broker.kind)
            batch = [_outbound(each, adapter.capabilities) for each in messages]
            if self._publisher is None:
                self._publisher = adapter.publisher(settings_of(self._broker))
            outcomes = self._publisher.publish(batch)
        except (Unavailable, Refused, Invalid) as away:
            self.close()
            raise Away(f"{self._broker.name}: {away}") from away
        return [_send_outcome(outcome) for outcome in outcomes]

    def close(self) -> None:
        """Close the connection to a swept outbox's broker.

        The next message opens another one.
        """
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()


def _outbound(message: OutboxMessage, capabilities: Capabilities) -> Outbound:
    """Translate an outbox's message for a registered broker; its id is a header."""
    message_id = message.message_id.encode()
    return Outbound(
        topic=message.topic,
        body=message.body,
        headers=capabilities.with_message_id(message.headers, message_id),
        dedupe=f"{message.producer}/{message.message_id}",
        key=message.key,
        is_by_producer=True,
    )


def _send_outcome(outcome: PublishOutcome) -> SendOutcome:
    return SendOutcome(kind=_KINDS[outcome.kind], detail=outcome.detail)
