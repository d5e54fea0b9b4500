"""Find the dead-letter queue of a queue by its redrive policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from apps.brokers.adapters.adapter import TopicSettings
from apps.brokers.adapters.sqs.sqs_calls import SqsRejected, SqsWire
from apps.core.errors import Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class RedrivePolicy:
    """The dead-letter queue of a queue, and the number of receives that leads there."""

    dead_letter_queue: str
    max_receive_count: int

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> RedrivePolicy | None:
        """Parse an SQS queue's redrive policy; None if it has none."""
        policy_json = attributes.get("RedrivePolicy")
        if not policy_json:
            return None
        policy = json.loads(policy_json)
        return cls(
            dead_letter_queue=name_of(policy["deadLetterTargetArn"]),
            max_receive_count=int(policy["maxReceiveCount"]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SqsDeadLetterQueue:
    """A topic's dead-letter queue, and how many receives lead into it, if known."""

    name: str
    max_receive_count: int | None = None


def dead_letter_queue_of(wire: SqsWire, topic: TopicSettings) -> SqsDeadLetterQueue:
    """Return the configured dead-letter queue, or else the redrive policy's."""
    named = topic.dead_letter_queue
    try:
        policy = RedrivePolicy.of(wire.attributes(topic.topic, "RedrivePolicy"))
    except SqsRejected:
        # The topic's queue may be deleted while its dead letters still exist.
        if not named:
            raise
        policy = None
    if policy is None and not named:
        raise Refused(
            f"SQS knows no redrive policy of {topic.topic}: give it one, or name its "
            "dead-letter queue."
        )
    if policy is not None and named in {"", policy.dead_letter_queue}:
        return SqsDeadLetterQueue(
            name=policy.dead_letter_queue, max_receive_count=policy.max_receive_count
        )
    return SqsDeadLetterQueue(name=named)


def name_of(arn: str) -> str:
    """Return the name of an SQS queue from its ARN."""
    return arn.rpartition(":")[2]
