"""What sends the messages of topics that no broker carries.

An app above this one that owns such topics registers a function when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome

if TYPE_CHECKING:
    from apps.brokers.services.topics_and_routing_publisher import RoutedMessage

# Returns an outcome for each message in order, None where it does not own the topic.
Send = Callable[[Sequence["RoutedMessage"]], list[PublishOutcome | None]]

_senders: list[Send] = []


def register_sender(send: Send) -> None:
    """Register how a publisher sends messages of topics without a broker, only once."""
    if send not in _senders:
        _senders.append(send)


def publish(messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
    """Publish messages of topics without a broker by the registered senders.

    Returns the outcome of each, in order. Messages of a topic that no registered sender
    owns are refused.
    """
    outcomes: list[PublishOutcome | None] = [None] * len(messages)
    for send in _senders:
        outcomes = [
            outcome or own
            for outcome, own in zip(outcomes, send(messages), strict=True)
        ]
    return [
        outcome or _refusal(message)
        for message, outcome in zip(messages, outcomes, strict=True)
    ]


def _refusal(message: RoutedMessage) -> PublishOutcome:
    """Return the refusal of a message whose topic has no broker and no owner."""
    return PublishOutcome(
        kind=OutcomeKind.REFUSED, detail=f"the topic {message.topic} has no broker"
    )
