"""NServiceBus: what it adds to a message that it moves to the error queue."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from apps.brokers.vocabularies.story import Found, Told, moment
from poisonguard import contract

NAME = "nservicebus"

PREFIX = "nservicebus."
EXCEPTION = f"{PREFIX}exceptioninfo."
# An endpoint must not find its retries used up, nor a message that failed already. What
# is left is the message: its id, its types, who sent it, what it belongs to.
_WROTE = tuple(
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
# yyyy-MM-dd HH:mm:ss:ffffff Z, which is no ISO-8601.
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)[:.](\d{6}) Z", re.ASCII)


def told(found: Found) -> Told:
    failed = f"{PREFIX}failedq" in found or f"{EXCEPTION}exceptiontype" in found
    message = Told(
        content_type=found.text(f"{PREFIX}contenttype"),
        message_type=_first_type(found.text(f"{PREFIX}enclosedmessagetypes")),
    )
    if not failed:
        return message
    return replace(
        message,
        cause=contract.Cause.EXHAUSTED,
        exception_type=found.text(f"{EXCEPTION}exceptiontype"),
        exception_message=found.text(f"{EXCEPTION}message"),
        exception_traceback=found.text(f"{EXCEPTION}stacktrace"),
        origin=found.text(f"{PREFIX}failedq"),
        consumer_group=found.text(f"{PREFIX}processingendpoint"),
        client_name=found.text(f"{PREFIX}processingmachine"),
        failed_at=_moment(found.text(f"{PREFIX}timeoffailure")),
    )


def wrote(found: Found) -> Collection[bytes]:
    return found.among(_WROTE, prefixes=(EXCEPTION,))


def _first_type(told_types: str) -> str:
    """Return the full name of the message itself, without the assembly it is from."""
    return told_types.partition(";")[0].partition(",")[0].strip()


def _moment(text: str) -> datetime | None:
    found = _MOMENT.fullmatch(text.strip())
    return moment(f"{found[1]}T{found[2]}.{found[3]}Z") if found else None
