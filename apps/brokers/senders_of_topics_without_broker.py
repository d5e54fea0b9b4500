"""What sends the messages of topics that no broker carries.

An app above this one that owns such topics registers a sender when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import QuerySet

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.models import Topic

if TYPE_CHECKING:
    from apps.brokers.services.topics_and_routing_publisher import RoutedMessage


@dataclass(frozen=True, slots=True)
class TopicSender:
    """Owner of topics without a broker.

    `send` returns an outcome for each message in order, None where it does not own the
    topic. `owned` returns the ids of those of some topics that it owns.
    """

    send: Callable[[Sequence[RoutedMessage]], list[PublishOutcome | None]]
    owned: Callable[[Collection[int]], Iterable[int]]


_senders: list[TopicSender] = []


def register_sender(sender: TopicSender) -> None:
    """Register how a publisher sends messages of topics without a broker, only once."""
    if sender not in _senders:
        _senders.append(sender)


def topics_without_sender(topics: Collection[int]) -> QuerySet[Topic]:
    """Select those of some topics whose messages are refused: no one sends them."""
    owned = [topic for sender in _senders for topic in sender.owned(topics)]
    without_broker = Topic.objects.filter(pk__in=topics, broker=None)
    return without_broker.exclude(pk__in=owned)


def publish(messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
    """Publish messages of topics without a broker by the registered senders.

    Returns the outcome of each, in order. Messages of a topic that no registered sender
    owns are refused.
    """
    outcomes: list[PublishOutcome | None] = [None] * len(messages)
    for sender in _senders:
        outcomes = [
            outcome or own
            for outcome, own in zip(outcomes, sender.send(messages), strict=True)
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
