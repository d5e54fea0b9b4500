"""Rebus: the headers of a message that it moved to the error queue.

The exceptions are in one text, as .NET prints them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from apps.brokers.failure_headers import stack_trace_exceptions
from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
)
from poisonguard import contract

NAME = "rebus"

DETAILS = "rbs2-error-details"
SOURCE = "rbs2-source-queue"
DELIVERIES = "rbs2-delivery-count"
# Rebus obeys these counts: it would move a message whose deliveries are used up
# straight back to the error queue.
_FAILURE_HEADERS = (DETAILS, SOURCE, DELIVERIES, "rbs2-defer-count")


def read_story(headers: HeaderMap) -> PartialStory:
    """Read Rebus' message type and content type, and its failure if there is one."""
    message = PartialStory(
        content_type=headers.text("rbs2-content-type"),
        message_type=headers.text("rbs2-msg-type").partition(",")[0].strip(),
    )
    if DETAILS not in headers and SOURCE not in headers:
        return message
    details = headers.text(DETAILS)
    kind, words = stack_trace_exceptions.dotnet(details)
    return replace(
        message,
        cause=contract.Cause.EXHAUSTED,
        exception_type=kind,
        exception_message=words,
        exception_traceback=details,
        origin=headers.text(SOURCE),
        attempts=headers.count(DELIVERIES),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name Rebus' headers of a failure."""
    return headers.among(_FAILURE_HEADERS)
