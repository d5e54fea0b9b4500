"""Build the failure report of a message that was given up."""

from __future__ import annotations

import os
import traceback
from datetime import datetime
from pathlib import Path
from uuid import NAMESPACE_OID, UUID, uuid5

from poisonguard.contract import TEXT_LIMIT, Cause, FailureReport, Raised
from poisonguard.handling.lazy_message_facts import MessageFacts
from poisonguard.journal.failed_attempts_record import Record
from poisonguard.settings import Settings

_OURS = f"{Path(__file__).parent}{os.sep}"


def failure_report(  # noqa: PLR0913 - as many as the report has
    facts: MessageFacts,
    settings: Settings,
    *,
    cause: Cause,
    record: Record | None,
    raised: Raised | None,
    suspected: bool,
    host: str,
    now: datetime,
) -> FailureReport:
    """Build the failure report of a given-up message, with a repeatable id."""
    first_failed_at = record.first_failed_at if record else now
    return FailureReport(
        report_id=_report_id(facts, settings, cause, record),
        topic=settings.topic,
        consumer_group=settings.consumer_group,
        client_name=settings.client_name,
        sub_id=settings.sub_id,
        bookmark=facts.bookmark,
        publisher=facts.publisher,
        seq=facts.seq,
        message_id=facts.message_id,
        body=facts.body,
        content_type=facts.content_type,
        headers=facts.headers,
        cause=cause,
        exception=raised,
        attempts=record.attempts if record else 0,
        failures=record.failures if record else 0,
        crashes=record.crashes if record else 0,
        dequeue_count=facts.dequeue_count,
        first_failed_at=first_failed_at,
        failed_at=record.failed_at if record else now,
        handler_version=settings.version,
        host=host,
        redrive=facts.redrive,
        replays=facts.replays,
        suspected=suspected,
        suspect=settings.suspect,
    )


def raised_by(error: Exception) -> Raised:
    """Convert a handler's exception for a report, without our frames, cut to fit."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return Raised(
        type=name[:TEXT_LIMIT],
        message=_text_of(error)[:TEXT_LIMIT],
        traceback=_traceback_of(error)[-TEXT_LIMIT:],
    )


def raised_by_death(record: Record) -> Raised | None:
    """Describe as an exception how a process died while handling a message, or None."""
    if record.crash is None:
        return None
    return Raised(
        type="ProcessHung" if record.crash is Cause.HANG else "ProcessDied",
        message=record.reason[:TEXT_LIMIT],
        traceback=record.stacks[-TEXT_LIMIT:],
    )


def _text_of(error: Exception) -> str:
    """Return the text of an exception, whatever its __str__ does."""
    try:
        return str(error)
    except Exception as reason:  # noqa: BLE001 - whatever a foreign __str__ raises
        return f"<its text cannot be had: {type(reason).__name__}>"


def _traceback_of(error: Exception) -> str:
    """Return the traceback of an exception, without the frames of this package."""
    whole = traceback.TracebackException.from_exception(error)
    whole.stack[:] = [f for f in whole.stack if not f.filename.startswith(_OURS)]
    return "".join(whole.format())


def _report_id(
    facts: MessageFacts, settings: Settings, cause: Cause, record: Record | None
) -> UUID:
    """Derive a failure report's id from its content: a repeated report counts once.

    Two reports of one message differ in the time of the first failure (or of its
    enqueueing, where it never failed) or in the redrive that sent it.
    """
    since = record.first_failed_at if record else facts.enqueued_at
    parts = (
        settings.topic,
        settings.consumer_group,
        facts.bookmark,
        cause.value,
        str(since),
        facts.redrive or "",
    )
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return uuid5(NAMESPACE_OID, text.encode("utf-8", "backslashreplace").decode())
