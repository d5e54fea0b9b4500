"""Reports that consumers of the history would have sent; all of them are marked."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from poisonguard.contract import CounterReport, FailureReport, Raised
from poisonweb.sample.history.daily_failure_plan import ClientCounts, Poisoned

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "poisonweb:sample-history")
HOST = "sample-history"
MARK = (b"x-sample", b"history")


def failure(poisoned: Poisoned, *, at: datetime, redrive: str | None) -> FailureReport:
    """Build the report of a made-up failure, as a consumer's guard would send it."""
    stream, fault = poisoned.stream, poisoned.fault
    bookmark = poisoned.bookmark(at)
    return FailureReport(
        report_id=uuid.uuid5(NAMESPACE, f"{stream} {bookmark}"),
        topic=stream.topic,
        consumer_group=stream.consumer_group,
        client_name=poisoned.client,
        bookmark=bookmark,
        body=fault.body(poisoned.number),
        headers=headers(poisoned),
        content_type="application/json",
        cause=fault.cause,
        exception=invent_exception(poisoned),
        attempts=fault.attempts,
        failures=1,
        crashes=0,
        first_failed_at=at - timedelta(seconds=fault.attempts - 1),
        failed_at=at,
        handler_version=poisoned.version,
        host=HOST,
        redrive=redrive,
    )


def headers(poisoned: Poisoned) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of a made-up message, with the mark of invented history."""
    trace = uuid.uuid5(NAMESPACE, f"trace {poisoned.stream} {poisoned.number}")
    return (
        (b"content-type", b"application/json"),
        (b"x-producer", poisoned.stream.producer.encode()),
        (b"x-trace-id", trace.hex.encode()),
        MARK,
    )


def invent_exception(poisoned: Poisoned) -> Raised:
    """Invent an exception with its traceback for a made-up failure's report."""
    fault = poisoned.fault
    message = fault.message.format(n=poisoned.number)
    lines = (
        "Traceback (most recent call last):",
        *fault.frames,
        f"{fault.title}: {message}",
    )
    return Raised(
        type=fault.title, message=message, traceback="".join(f"{x}\n" for x in lines)
    )


def counter(count: ClientCounts, sequence: int) -> CounterReport:
    """Build a made-up counter report of a consumer, as its guard would send it."""
    return CounterReport(
        reporter=reporter(count),
        sequence=sequence,
        topic=count.stream.topic,
        consumer_group=count.stream.consumer_group,
        client_name=count.client,
        minute=count.minute,
        handled=count.handled,
        failed=count.failed,
        skipped=count.skipped,
        retried=count.retried,
        duration_ms_hist=count.durations,
    )


def reporter(count: ClientCounts) -> uuid.UUID:
    """Return the reporter id of a made-up consumer, the same in each made history."""
    return uuid.uuid5(NAMESPACE, f"{count.stream} {count.client}")
