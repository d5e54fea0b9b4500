"""Amazon SQS itself: the attribute of a message that its redrive policy moved."""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
)
from poisonguard import contract

NAME = "amazon-sqs"

# Our adapter's name for it; no attribute of a message has a colon in its name.
CAME_FROM = "sqs:DeadLetterQueueSourceArn"


def read_story(headers: HeaderMap) -> PartialStory:
    """Read a dead letter's story from SQS' header of the queue that it came from.

    It was received too often, not deleted: SQS' only cause of a dead letter. Empty
    without the header.
    """
    source = headers.text(CAME_FROM.lower())
    if not source:
        return PartialStory()
    return PartialStory(
        cause=contract.Cause.MAX_DEQUEUE_COUNT, origin=source.rpartition(":")[2]
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name SQS' header of the queue that a message came from."""
    # Only SQS sets it, on each message in a dead-letter queue.
    return headers.among((CAME_FROM.lower(),))
