"""Publish the messages of an operation that keeps the order of each topic."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from django.db import connection, transaction

from apps.brokers import adapter_contract
from apps.brokers.services.topics_and_routing_publisher import RoutingPublisher
from apps.core.queryset_sql import read_by_index
from apps.poison.models import ItemWindow
from apps.poison.states import RedriveOutcome
from apps.triage.models import Operation
from apps.triage.services.operation_redirects import targets_of
from apps.triage.services.redrive_message_building import OutboundMessage, outcome_of

KEPT_BACK = adapter_contract.PublishOutcome(
    kind=adapter_contract.OutcomeKind.REFUSED,
    detail="kept back: an earlier message of its topic was refused",
)
TRY_AGAIN = (adapter_contract.OutcomeKind.UNKNOWN, adapter_contract.OutcomeKind.UNSENT)

TopicId = int

# Behind a refused message the rest of its topic counts as refused, so they may be many:
# only their topics leave Postgres. OFFSET 0 makes it look up each row, whatever it
# knows of the tables.
_REFUSED_TOPICS = """
SELECT DISTINCT refused.topic_id
FROM poison_window own
CROSS JOIN LATERAL (
    SELECT poison_id FROM triage_selected_item
    WHERE operation_id = own.operation
      AND number >= own.first AND number < own.first + own.items
    OFFSET 0
) item
CROSS JOIN LATERAL (
    SELECT topic_id FROM poison_redrive
    WHERE poison_id = item.poison_id AND operation = own.operation
      AND outcome = 'refused'
    OFFSET 0
) refused
WHERE own.operation = %s AND own.refused > 0
"""


class OrderedSends:
    """Send a message of a topic only when the broker has the one before.

    When the broker refuses a message, the rest of its topic is kept back.
    """

    def __init__(self, operation: Operation, publisher: RoutingPublisher) -> None:
        self.publisher = publisher
        self.stuck_topics: dict[TopicId, adapter_contract.PublishOutcome]
        self.stuck_topics = dict.fromkeys(_refused_topics(operation), KEPT_BACK)

    def publish(
        self, messages: Sequence[OutboundMessage]
    ) -> list[adapter_contract.PublishOutcome]:
        """Publish a redrive's messages, those of a topic one by one.

        Returns their outcomes in order.
        """
        by_topic: dict[TopicId, list[OutboundMessage]] = {}
        for message in messages:
            by_topic.setdefault(_topic_id(message), []).append(message)
        outcomes: dict[uuid.UUID, adapter_contract.PublishOutcome] = {}
        for rank in zip_longest(*by_topic.values()):
            outcomes |= self._publish_rank([each for each in rank if each is not None])
        return [outcomes[message.redrive] for message in messages]

    def _publish_rank(
        self, rank: list[OutboundMessage]
    ) -> dict[uuid.UUID, adapter_contract.PublishOutcome]:
        """Send a redrive's message of each topic in which no earlier one failed.

        Returns the outcomes; the messages of the other topics are not sent.
        """
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
                unsent = replace(outcome, kind=adapter_contract.OutcomeKind.UNSENT)
                self.stuck_topics[_topic_id(message)] = unsent
            elif outcome_of(message, outcome) is RedriveOutcome.REFUSED:
                self.stuck_topics[_topic_id(message)] = KEPT_BACK
        return outcomes


def _refused_topics(operation: Operation) -> set[TopicId]:
    """Return the topics in which a message of an earlier run was refused.

    Where all messages are sent to one topic, the counts of windows tell it.
    """
    refused = ItemWindow.objects.filter(operation=operation.pk, refused__gt=0)
    if not refused.exists():
        return set()
    source_topics = (operation.breakdown or {}).get("topic_ids") or ()
    targets = targets_of(operation, source_topics)
    if len(targets) == 1:
        return targets
    with transaction.atomic(), connection.cursor() as cursor:
        read_by_index()
        cursor.execute(_REFUSED_TOPICS, [operation.pk])
        return {topic for (topic,) in cursor.fetchall()}


def _topic_id(message: OutboundMessage) -> TopicId:
    """Return a redriven message's topic, in which order is kept: keys are not known."""
    return message.addressed.topic.pk
