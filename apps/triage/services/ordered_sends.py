"""Publishes the messages of an operation that keeps the order of each topic."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from apps.brokers import ports
from apps.brokers.services.topics import RoutingPublisher
from apps.poison.states import RedriveOutcome
from apps.triage.models import Operation
from apps.triage.services.outbound import OutboundMessage, to_answer

KEPT_BACK = ports.PublishOutcome(
    kind=ports.OutcomeKind.REFUSED,
    detail="kept back: an earlier message of its topic was refused",
)
TRY_AGAIN = (ports.OutcomeKind.UNKNOWN, ports.OutcomeKind.UNSENT)

TopicId = int


class OrderedSends:
    """Sends a message of a topic only when the broker has the one before.

    When the broker refuses a message, the rest of its topic is kept back.
    """

    def __init__(self, operation: Operation, publisher: RoutingPublisher) -> None:
        self.publisher = publisher
        refused = operation.items.filter(redrive__outcome=RedriveOutcome.REFUSED)
        topics = refused.values_list("redrive__topic_id", flat=True).distinct()
        self.stuck_topics: dict[TopicId, ports.PublishOutcome]
        self.stuck_topics = dict.fromkeys(topics, KEPT_BACK)

    def publish(
        self, messages: Sequence[OutboundMessage]
    ) -> list[ports.PublishOutcome]:
        """Publish messages, those of a topic one by one; return outcomes in order."""
        by_topic: dict[TopicId, list[OutboundMessage]] = {}
        for message in messages:
            by_topic.setdefault(_topic_id(message), []).append(message)
        outcomes: dict[uuid.UUID, ports.PublishOutcome] = {}
        for rank in zip_longest(*by_topic.values()):
            outcomes |= self._publish_rank([each for each in rank if each is not None])
        return [outcomes[message.redrive] for message in messages]

    def _publish_rank(
        self, rank: list[OutboundMessage]
    ) -> dict[uuid.UUID, ports.PublishOutcome]:
        """Publish one message of each topic in which no earlier one failed."""
        sendable = [each for each in rank if _topic_id(each) not in self.stuck_topics]
        answers = self.publisher.publish([each.addressed for each in sendable])
        outcomes = {
            message.redrive: self.stuck_topics[_topic_id(message)]
            for message in rank
            if _topic_id(message) in self.stuck_topics
        }
        for message, outcome in zip(sendable, answers, strict=True):
            outcomes[message.redrive] = outcome
            if outcome.kind in TRY_AGAIN:
                unsent = replace(outcome, kind=ports.OutcomeKind.UNSENT)
                self.stuck_topics[_topic_id(message)] = unsent
            elif to_answer(message, outcome).outcome is RedriveOutcome.REFUSED:
                self.stuck_topics[_topic_id(message)] = KEPT_BACK
        return outcomes


def _topic_id(message: OutboundMessage) -> TopicId:
    """Return the topic, within which order is kept: keys are not known."""
    return message.addressed.topic.pk
