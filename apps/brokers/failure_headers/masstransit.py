"""MassTransit: the headers of a message in an `_error` or `_skipped` queue."""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.failure_headers.story_type_and_header_values import (
    HeaderMap,
    PartialStory,
    attempts_of_retries,
)
from poisonguard import contract

NAME = "masstransit"

FAULT = "mt-fault-"
REASON = "mt-reason"
# The redelivery count must start again, or the endpoint's policy is used up before it
# starts; the faults belong to a past failure.
_FAILURE_HEADERS = (REASON, "mt-redelivery-count")
_CAUSES = {"fault": contract.Cause.EXHAUSTED, "dead-letter": contract.Cause.REJECTED}


def read_story(headers: HeaderMap) -> PartialStory:
    """Read a fault's story from MassTransit's headers; empty without a fault."""
    kind = headers.text(f"{FAULT}exceptiontype")
    reason = headers.text(REASON).strip().lower()
    if not kind and reason not in _CAUSES:
        return PartialStory()
    return PartialStory(
        cause=_CAUSES.get(reason, contract.Cause.EXHAUSTED),
        exception_type=kind,
        exception_message=headers.text(f"{FAULT}message"),
        exception_traceback=headers.text(f"{FAULT}stacktrace"),
        origin=headers.text(f"{FAULT}inputaddress"),
        consumer_group=headers.text(f"{FAULT}consumertype"),
        attempts=attempts_of_retries(headers.count(f"{FAULT}retrycount")),
        failed_at=headers.moment(f"{FAULT}timestamp"),
        message_type=headers.text(f"{FAULT}messagetype"),
    )


def failure_headers(headers: HeaderMap) -> Collection[bytes]:
    """Name MassTransit's headers of a fault."""
    return headers.among(_FAILURE_HEADERS, prefixes=(FAULT,))
