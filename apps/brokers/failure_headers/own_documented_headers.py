"""Poisonweb: our own documented headers, which any producer may have written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from apps.brokers.adapter_contract import Header
from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
    Story,
)
from poisonguard import contract

NAME = "poisonweb"

# The last is a property of AMQP, not a header of the message.
_CONTENT_TYPE = ("content-type", "content_type", "amqp.content_type")
_MESSAGE_TYPE = frozenset(
    {b"type", b"message-type", b"message_type", b"ce-type", b"amqp.type"}
)
_STAYS_BEHIND = (*contract.DEAD_LETTER_HEADERS, contract.REDRIVE_HEADER)
# Spring AMQP's name for a stack; another of its headers has the name of ours.
_SPRING_STACK = "x-exception-stacktrace"


def read_story(headers: HeaderMap) -> PartialStory:
    """Read a failure's story from Poisonweb's own headers.

    An unreadable value becomes None.
    """
    of_spring = _SPRING_STACK in headers
    message = "" if of_spring else headers.text(contract.EXCEPTION_MESSAGE_HEADER)
    return PartialStory(
        cause=_parse_cause(headers.text(contract.CAUSE_HEADER)),
        exception_type=headers.text(contract.EXCEPTION_TYPE_HEADER),
        exception_message=message,
        exception_traceback=headers.text(contract.EXCEPTION_TRACEBACK_HEADER),
        original_bookmark=headers.text(contract.ORIGINAL_BOOKMARK_HEADER) or None,
        consumer_group=headers.text(contract.CONSUMER_GROUP_HEADER),
        client_name=headers.text(contract.CLIENT_NAME_HEADER),
        attempts=headers.count(contract.ATTEMPTS_HEADER),
        failed_at=headers.moment(contract.FAILED_AT_HEADER),
        handler_version=headers.text(contract.HANDLER_VERSION_HEADER) or None,
        content_type=headers.first(*_CONTENT_TYPE),
        redrive=headers.text(contract.REDRIVE_HEADER) or None,
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name our headers of the failure, and the mark of the previous redrive."""
    return headers.among(_STAYS_BEHIND)


def read(headers: Sequence[Header]) -> Story:
    """Read a dead letter's story from our own headers alone."""
    mine = read_story(HeaderMap(headers))
    cause = mine.cause or contract.Cause.REJECTED
    values = {name: getattr(mine, name) for name in PartialStory.__dataclass_fields__}
    return Story(**{**values, "cause": cause})


def content_type(headers: Sequence[Header]) -> str | None:
    """Return the content type that a message's producer named, or None."""
    return HeaderMap(headers).first(*_CONTENT_TYPE) or None


def message_type(headers: Sequence[Header]) -> str | None:
    """Return the message type that a producer put into a header, or None.

    That is `type`, `message-type`, `ce-type` or AMQP's property.
    """
    values = (value for name, value in headers if name.lower() in _MESSAGE_TYPE)
    return next((value.decode("utf-8", "replace") for value in values if value), None)


def headers_of_exhausted(
    *,
    bookmark: bytes,
    consumer_group: bytes,
    client_name: bytes,
    attempts: int,
    failed_at: datetime,
) -> tuple[Header, ...]:
    """Return headers with the story of a message that was handed out too often.

    `client_name` may be b"". The broker's own names stay as they are, even where they
    are not UTF-8.
    """
    story = {
        contract.CAUSE_HEADER: contract.Cause.MAX_DEQUEUE_COUNT.encode(),
        contract.ORIGINAL_BOOKMARK_HEADER: bookmark,
        contract.CONSUMER_GROUP_HEADER: consumer_group,
        contract.CLIENT_NAME_HEADER: client_name,
        contract.ATTEMPTS_HEADER: b"%d" % attempts,
        contract.FAILED_AT_HEADER: failed_at.isoformat().encode(),
    }
    return tuple((name.encode(), value) for name, value in story.items() if value)


def leaving(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Return the headers less our own story and the previous redrive's mark."""
    names = failure_headers(HeaderMap(headers))
    return tuple(header for header in headers if header[0].lower() not in names)


def _parse_cause(text: str) -> contract.Cause | None:
    """Parse the failure's cause in our header; None for a word outside the contract."""
    try:
        return contract.Cause(text.strip().lower())
    except ValueError:
        return None
