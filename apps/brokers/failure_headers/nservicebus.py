"""NServiceBus: the headers of a message that it moved to the error queue."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
    parse_moment,
)
from poisonguard import contract

NAME = "nservicebus"

PREFIX = "nservicebus."
EXCEPTION = f"{PREFIX}exceptioninfo."
# An endpoint must neither find its retries used up nor a message that already failed.
# The other headers are the message: its id, its types, its sender.
_FAILURE_HEADERS = tuple(
    f"{PREFIX}{name}"
    for name in (
        "failedq",
        "timeoffailure",
        "retries",
        "retries.timestamp",
        "flretries",
        "processingendpoint",
        "processingmachine",
        "processingstarted",
        "processingended",
    )
)
# yyyy-MM-dd HH:mm:ss:ffffff Z, which is not ISO-8601.
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)[:.](\d{6}) Z", re.ASCII)


def read_story(headers: HeaderMap) -> PartialStory:
    """Read NServiceBus' message type and content type, and its failure if any."""
    failed = f"{PREFIX}failedq" in headers or f"{EXCEPTION}exceptiontype" in headers
    message = PartialStory(
        content_type=headers.text(f"{PREFIX}contenttype"),
        message_type=_first_type(headers.text(f"{PREFIX}enclosedmessagetypes")),
    )
    if not failed:
        return message
    return replace(
        message,
        cause=contract.Cause.EXHAUSTED,
        exception_type=headers.text(f"{EXCEPTION}exceptiontype"),
        exception_message=headers.text(f"{EXCEPTION}message"),
        exception_traceback=headers.text(f"{EXCEPTION}stacktrace"),
        origin=headers.text(f"{PREFIX}failedq"),
        consumer_group=headers.text(f"{PREFIX}processingendpoint"),
        client_name=headers.text(f"{PREFIX}processingmachine"),
        failed_at=_parse_time(headers.text(f"{PREFIX}timeoffailure")),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name NServiceBus' headers of a failure."""
    return headers.among(_FAILURE_HEADERS, prefixes=(EXCEPTION,))


def _first_type(type_names: str) -> str:
    """Return the full .NET type name of NServiceBus' message, without its assembly."""
    return type_names.partition(";")[0].partition(",")[0].strip()


def _parse_time(text: str) -> datetime | None:
    """Parse NServiceBus' time, with a colon before the fraction; or None."""
    match = _MOMENT.fullmatch(text.strip())
    return parse_moment(f"{match[1]}T{match[2]}.{match[3]}Z") if match else None
