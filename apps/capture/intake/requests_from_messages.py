"""Messages that are requests for endpoints: who takes them, and what names each.

An app above this one that owns endpoints registers a function when it starts. The lane
of a topic of requests calls it, and captures what it refuses.

A request is taken once, whatever becomes of the lane. Where its broker names a message,
or its producer did, that name identifies the request for as long as it is stored. Other
messages are recognized as `dead_letter_deduplication` describes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from apps.brokers.adapter_contract import DeadLetter, Header
from apps.brokers.failure_headers import Story
from apps.brokers.models import Topic
from apps.brokers.row_locks import lock_topics
from apps.capture.intake.occurrence import digest_of_delivery
from apps.capture.models import Delivery
from apps.core import hashed_ids
from apps.core.errors import Refused
from apps.core.postgres_connections import borrow
from poisonguard.contract import Cause

# What an AMQP producer names a message by, as its adapter has it.
_MESSAGE_ID = b"amqp.message_id"


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestMessage:
    """A message of a topic of requests; `identity` is the same when it comes again."""

    letter: DeadLetter
    identity: uuid.UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRefusal:
    """Why a message is no request that can be made."""

    cause: Cause
    reason: str

    def story(self, of_headers: Story) -> Story:
        """Return why a lane refused a request as a failure story, as if from headers.

        What the headers say beside a failure stays: it is the producer's own.
        """
        return Story(
            cause=self.cause,
            exception_type="RequestRefused",
            exception_message=self.reason,
            content_type=of_headers.content_type,
            message_type=of_headers.message_type,
            redrive=of_headers.redrive,
            told_by=("poisonweb",),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenRequest:
    """A message that was taken, or why it was refused."""

    letter: DeadLetter
    identity: uuid.UUID
    refusal: RequestRefusal | None


# Stores requests in the transaction of its caller; returns the refusal of each, None of
# those that are stored, now or before.
Take = Callable[
    [Topic, Sequence[RequestMessage], datetime], list[RequestRefusal | None]
]

_takers: list[Take] = []


def register(take: Take) -> None:
    """Register the function that stores requests to endpoints, only once."""
    if take not in _takers:
        _takers.append(take)


@borrow()
@transaction.atomic
def take(
    *, topic: Topic, letters: Sequence[DeadLetter], now: datetime
) -> list[TakenRequest]:
    """Store a lane's messages as requests to endpoints; return each with any refusal.

    It uses one transaction, and does not store refused requests. Raises Refused where
    no part of the installation takes requests.
    """
    if not _takers:
        raise Refused("No part of this installation takes requests for endpoints.")
    lock_topics(topics=[topic.pk])
    messages = [_message(letter, topic) for letter in letters]
    refusals = _takers[0](topic, messages, now)
    requests = [
        TakenRequest(letter=each.letter, identity=each.identity, refusal=refusal)
        for each, refusal in zip(messages, refusals, strict=True)
    ]
    Delivery.objects.bulk_create(
        [
            Delivery(
                report_id=each.identity,
                topic=topic,
                digest=digest_of_delivery(each.letter),
                captured_at=now,
            )
            for each in requests
            if each.refusal is None and not _name_of(each.letter)
        ]
    )
    return requests


def _message(letter: DeadLetter, topic: Topic) -> RequestMessage:
    """Give a request its identity: of its place, or of its producer's id and content.

    An id alone would not do: some producers use one twice. A request that nothing
    names gets a random identity.
    """
    name = _name_of(letter)
    if not name:
        return RequestMessage(letter=letter, identity=uuid.uuid4())
    digest = hashed_ids.digest_of(
        b"request",
        hashed_ids.raw(topic.name),
        hashed_ids.raw(letter.queue),
        name,
    )
    return RequestMessage(letter=letter, identity=uuid.UUID(bytes=digest[:16]))


def _name_of(letter: DeadLetter) -> bytes:
    """Return the lasting name of a request that a lane read; b"" if nothing names it.

    That is its name at the broker, or its digest if it has a message id.
    """
    if letter.bookmark:
        return hashed_ids.raw(letter.bookmark)
    return digest_of_delivery(letter) if _has_message_id(letter.headers) else b""


def _has_message_id(headers: Sequence[Header]) -> bool:
    return any(name == _MESSAGE_ID and value for name, value in headers)
