"""MassTransit: what it adds to a message in an `_error` or `_skipped` queue."""

from __future__ import annotations

from collections.abc import Collection

from apps.brokers.vocabularies.story import Found, Told, one_more
from poisonguard import contract

NAME = "masstransit"

FAULT = "mt-fault-"
REASON = "mt-reason"
# The count of redeliveries must begin anew, else the policy of the endpoint is used up
# before it starts; the faults belong to a failure that is over.
_WROTE = (REASON, "mt-redelivery-count")
_CAUSES = {"fault": contract.Cause.EXHAUSTED, "dead-letter": contract.Cause.REJECTED}


def told(found: Found) -> Told:
    kind = found.text(f"{FAULT}exceptiontype")
    reason = found.text(REASON).strip().lower()
    if not kind and reason not in _CAUSES:
        return Told()
    return Told(
        cause=_CAUSES.get(reason, contract.Cause.EXHAUSTED),
        exception_type=kind,
        exception_message=found.text(f"{FAULT}message"),
        exception_traceback=found.text(f"{FAULT}stacktrace"),
        origin=found.text(f"{FAULT}inputaddress"),
        consumer_group=found.text(f"{FAULT}consumertype"),
        attempts=one_more(found.count(f"{FAULT}retrycount")),
        failed_at=found.moment(f"{FAULT}timestamp"),
        message_type=found.text(f"{FAULT}messagetype"),
    )


def wrote(found: Found) -> Collection[bytes]:
    return found.among(_WROTE, prefixes=(FAULT,))
