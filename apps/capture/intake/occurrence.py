"""One failure, reported by a guard or drained by a lane, as a value."""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime, timedelta
from typing import NamedTuple

from apps.brokers import failure_headers
from apps.brokers.adapter_contract import Capabilities, Counting, DeadLetter, Header
from apps.brokers.failure_headers import Story
from apps.brokers.failure_headers import own_documented_headers as vocabulary
from apps.brokers.models import Topic
from apps.core import hashed_ids
from apps.core.text_cleaning import one_line, storable
from apps.poison import redrive_signatures
from poisonguard.contract import NAME_LIMIT, Cause, FailureReport, Raised
from poisonguard.fingerprint import Fingerprint, fingerprint
from poisonguard.outbox.sweeping import quarantine_report_text_and_cause

BELIEVED_BEFORE = timedelta(days=30)
BELIEVED_AFTER = timedelta(minutes=5)
MOST = 2**31 - 1
MESSAGE_ID_LIMIT = 4096


class Occurrence(NamedTuple):
    """What capture stores of one failure; Postgres accepts all of its texts.

    `bookmark`, `body` and `headers` are exact bytes. `redrive` is set only if its
    signature is valid. `failed_at_claimed` is the reported time, if it is too far off
    to be believed. `replays` says that other consumers will receive this message too,
    `suspected` that they may be able to handle it, `is_shared_at_once` that its skip
    need not wait for them. `publisher` and `seq` are its position, if its broker gives
    one.

    A dead letter has a `queue`, and a `place` in it if the broker names one. If not,
    `delivery` identifies the letter until it is acknowledged.
    """

    report_id: uuid.UUID
    topic_id: int
    consumer_group: str
    bookmark: bytes
    identity: bytes
    client_name: str
    sub_id: str | None
    host: str | None
    handler_version: str | None
    message_id: str | None
    body: bytes
    digest: bytes
    headers: tuple[Header, ...]
    content_type: str | None
    cause: str
    error_type: str
    error_message: str
    traceback: str
    fingerprint: Fingerprint
    attempts: int
    failures: int
    crashes: int
    dequeue_count: int | None
    dequeue_count_source: str
    first_failed_at: datetime
    failed_at: datetime
    failed_at_claimed: datetime | None
    redrive: uuid.UUID | None
    publisher: str | None
    seq: int | None
    replays: bool
    suspected: bool
    is_shared_at_once: bool
    queue: str = ""
    place: str = ""
    delivery: bytes | None = None


def from_report(report: FailureReport, *, topic: Topic, now: datetime) -> Occurrence:
    """Translate a guard's report into an occurrence to store."""
    raised = report.exception or Raised(type="", message="", traceback="")
    bookmark = hashed_ids.raw(report.bookmark)
    digest = hashlib.sha256(report.body).digest()
    failed_at, claimed = credible_time(report.failed_at, now=now)
    return Occurrence(
        report_id=report.report_id,
        topic_id=topic.pk,
        consumer_group=report.consumer_group,
        bookmark=bookmark,
        identity=hashed_ids.identity(
            topic=topic.name, consumer_group=report.consumer_group, bookmark=bookmark
        ),
        client_name=report.client_name,
        sub_id=report.sub_id,
        host=report.host,
        handler_version=report.handler_version,
        message_id=stored_message_id(report.message_id),
        body=report.body,
        digest=digest,
        headers=report.headers,
        content_type=_storable_or_none(report.content_type),
        cause=report.cause.value,
        error_type=one_line(raised.type),
        error_message=storable(raised.message),
        traceback=storable(raised.traceback),
        fingerprint=_fingerprint(
            raised, report.cause.value, report.body, report.headers, report.content_type
        ),
        attempts=report.attempts,
        failures=report.failures,
        crashes=report.crashes,
        dequeue_count=report.dequeue_count,
        dequeue_count_source="",
        first_failed_at=min(
            credible_time(report.first_failed_at, now=now)[0], failed_at
        ),
        failed_at=failed_at,
        failed_at_claimed=claimed,
        redrive=_redrive_of_token(report.redrive, topic=topic, digest=digest),
        publisher=report.publisher,
        seq=report.seq,
        replays=topic.replays or report.replays,
        suspected=report.suspected,
        is_shared_at_once=not report.suspect,
    )


def from_dead_letter(
    letter: DeadLetter,
    *,
    topic: Topic,
    capabilities: Capabilities,
    story: Story | None = None,
    now: datetime,
) -> Occurrence:
    """Translate a message from a dead-letter queue into an occurrence to store.

    Without a `story` of its own, its headers tell why it is there.
    """
    nameless = not letter.bookmark
    delivery = digest_of_delivery(letter) if nameless else None
    place = f"made/{uuid.uuid4()}" if nameless else letter.bookmark
    by_policy = capabilities.counting is Counting.POLICY
    count = topic.max_dequeue_count if by_policy else letter.dequeue_count
    story = story or failure_headers.read(letter.headers)
    raised = Raised(
        type=story.exception_type,
        message=story.exception_message,
        traceback=story.exception_traceback,
    )
    cause = story.cause.value
    if by_policy and story.cause is Cause.REJECTED and not story.told_by:
        # No header names the cause, and there is only one way into such a queue.
        cause = Cause.MAX_DEQUEUE_COUNT.value
    origin = story.original_bookmark or f"{letter.queue}/{place}"
    bookmark = hashed_ids.raw(origin)
    # The headers keep it whole; a report over HTTP has the same limit.
    group = storable(story.consumer_group, limit=NAME_LIMIT)
    digest = hashlib.sha256(letter.body).digest()
    failed_at, claimed = credible_time(story.failed_at or now, now=now)
    content_type = story.content_type or None
    return Occurrence(
        report_id=hashed_ids.report_id(queue=letter.queue, bookmark=place),
        topic_id=topic.pk,
        consumer_group=group,
        bookmark=bookmark,
        identity=hashed_ids.identity(
            topic=topic.name, consumer_group=group, bookmark=bookmark
        ),
        client_name=storable(story.client_name, limit=NAME_LIMIT),
        sub_id=None,
        host=None,
        handler_version=_storable_or_none(story.handler_version),
        message_id=None,
        body=letter.body,
        digest=digest,
        headers=letter.headers,
        content_type=_storable_or_none(content_type),
        cause=cause,
        error_type=one_line(raised.type),
        error_message=storable(raised.message),
        traceback=storable(raised.traceback),
        fingerprint=_fingerprint(
            raised,
            cause,
            letter.body,
            letter.headers,
            story.message_type or content_type,
        ),
        attempts=min(story.attempts or count or 1, MOST),
        failures=1,
        crashes=0,
        dequeue_count=count,
        dequeue_count_source=_counted_by(count, capabilities),
        first_failed_at=failed_at,
        failed_at=failed_at,
        failed_at_claimed=claimed,
        redrive=_redrive_of_token(story.redrive, topic=topic, digest=digest),
        publisher=None,
        seq=None,
        replays=topic.replays,
        suspected=False,
        # The broker gave it up, so this is not one consumer that fails alone.
        is_shared_at_once=True,
        queue=letter.queue,
        place="" if nameless else place,
        delivery=delivery,
    )


def digest_of_delivery(letter: DeadLetter) -> bytes:
    """Hash all that identifies a dead letter without a name."""
    parts = (part for header in letter.headers for part in header)
    return hashed_ids.digest_of(hashed_ids.raw(letter.queue), letter.body, *parts)


def _counted_by(count: int | None, capabilities: Capabilities) -> str:
    """Name the source of a dead letter's delivery count; "" without a count.

    That is "broker", or "policy" for the topic's own limit of deliveries.
    """
    if count is None or capabilities.counting is Counting.NONE:
        return ""
    return capabilities.counting.value


def credible_time(
    claimed: datetime, *, now: datetime
) -> tuple[datetime, datetime | None]:
    """Return a failure's claimed time, or ours if that clock is far off.

    The second value is the claimed time if it was not believed, else None.
    """
    if now - BELIEVED_BEFORE <= claimed <= now + BELIEVED_AFTER:
        return claimed, None
    return now, claimed


def stored_message_id(message_id: str | None) -> str | None:
    """Return a message id as Postgres can store it, cut if too long."""
    return None if message_id is None else storable(message_id, limit=MESSAGE_ID_LIMIT)


def _storable_or_none(text: str | None) -> str | None:
    """Return a name as Postgres can store it, or None."""
    return None if text is None else storable(text, limit=NAME_LIMIT)


def _redrive_of_token(
    token: str | None, *, topic: Topic, digest: bytes
) -> uuid.UUID | None:
    """Return the id of the redrive that a genuine redrive token names, else None."""
    if token is None:
        return None
    return redrive_signatures.verified_redrive_id(
        token, topic=topic.name, digest=digest
    )


def _fingerprint(
    raised: Raised,
    cause: str,
    body: bytes,
    headers: tuple[Header, ...],
    content_type: str | None,
) -> Fingerprint:
    """Classify a failure by its exception, cause, message type and body."""
    is_row = raised.type == quarantine_report_text_and_cause.EXCEPTION_TYPE
    text = (
        quarantine_report_text_and_cause.cause_in(raised.message)
        if is_row
        else raised.message
    )
    return fingerprint(
        exception_type=raised.type,
        exception_message=text,
        traceback=raised.traceback,
        cause=cause,
        message_type=content_type or vocabulary.message_type(headers) or "",
        body=body,
    )
