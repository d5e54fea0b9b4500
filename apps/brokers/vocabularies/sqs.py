"""Amazon SQS itself: a message that its redrive policy moved tells where it was."""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.vocabularies.story import HeaderMap, PartialStory
from poisonguard import contract

NAME = "amazon-sqs"

# As our adapter writes it down; no attribute of a message has a name with a colon.
CAME_FROM = "sqs:DeadLetterQueueSourceArn"


def read_story(headers: HeaderMap) -> PartialStory:
    """Read the one way there is: received too often, and never deleted."""
    source = headers.text(CAME_FROM.lower())
    if not source:
        return PartialStory()
    return PartialStory(
        cause=contract.Cause.MAX_DEQUEUE_COUNT, origin=source.rpartition(":")[2]
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    # SQS says it of a message in a dead-letter queue, and only SQS can.
    return headers.among((CAME_FROM.lower(),))
