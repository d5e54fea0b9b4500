"""Our own documented headers, as any producer may have written them.

Names are matched without regard to case. Of headers that occur twice the last one
counts: whoever gives up on a message adds its headers behind those it found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from apps.brokers.ports import Header
from poisonguard import contract

_CONTENT_TYPE = frozenset({b"content-type", b"content_type"})
_MESSAGE_TYPE = frozenset({b"type", b"message-type", b"message_type", b"ce-type"})
_COUNT_DIGITS = len(str(contract.COUNT_LIMIT))
_STAYS_BEHIND = frozenset(
    name.encode() for name in (*contract.DEAD_LETTER_HEADERS, contract.REDRIVE_HEADER)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """What the headers of a dead letter tell; what they do not tell is "" or None.

    The texts are decoded with replacement and may hold NUL. A dead letter that names
    no cause we know was simply `rejected`: somebody put it there.
    """

    cause: contract.Cause
    exception_type: str
    exception_message: str
    exception_traceback: str
    original_bookmark: str | None
    consumer_group: str
    client_name: str
    attempts: int | None
    failed_at: datetime | None
    handler_version: str | None
    redrive: str | None


def read(headers: Sequence[Header]) -> Story:
    """Read the story; a number or a date that is none becomes None, nothing raises."""
    found = {name.lower(): value for name, value in headers}

    def text(name: str) -> str:
        return _decoded(found.get(name.encode(), b""))

    return Story(
        cause=_cause(text(contract.CAUSE_HEADER)),
        exception_type=text(contract.EXCEPTION_TYPE_HEADER),
        exception_message=text(contract.EXCEPTION_MESSAGE_HEADER),
        exception_traceback=text(contract.EXCEPTION_TRACEBACK_HEADER),
        original_bookmark=text(contract.ORIGINAL_BOOKMARK_HEADER) or None,
        consumer_group=text(contract.CONSUMER_GROUP_HEADER),
        client_name=text(contract.CLIENT_NAME_HEADER),
        attempts=_count(text(contract.ATTEMPTS_HEADER)),
        failed_at=_moment(text(contract.FAILED_AT_HEADER)),
        handler_version=text(contract.HANDLER_VERSION_HEADER) or None,
        redrive=text(contract.REDRIVE_HEADER) or None,
    )


def content_type(headers: Sequence[Header]) -> str | None:
    return _first(headers, _CONTENT_TYPE)


def message_type(headers: Sequence[Header]) -> str | None:
    """Return what kind of message the producer says this is."""
    return _first(headers, _MESSAGE_TYPE)


def exhausted(
    *,
    bookmark: bytes,
    consumer_group: bytes,
    client_name: bytes,
    attempts: int,
    failed_at: datetime,
) -> tuple[Header, ...]:
    """Write the story of a message handed out too often; no client name may be known.

    Whatever the broker calls these stays as it is, even where that is no UTF-8.
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
    """Return the headers for a redrive: as stored, less the story and the old mark."""
    return tuple(h for h in headers if h[0].lower() not in _STAYS_BEHIND)


def _first(headers: Sequence[Header], names: frozenset[bytes]) -> str | None:
    values = (value for name, value in headers if name.lower() in names)
    return next((_decoded(value) for value in values if value), None)


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _cause(text: str) -> contract.Cause:
    try:
        return contract.Cause(text.strip().lower())
    except ValueError:
        return contract.Cause.REJECTED


def _count(text: str) -> int | None:
    digits = text.strip()
    # int() reads other scripts' digits and underscores, and refuses 5,000 digits.
    if not digits.isascii() or not digits.isdigit() or len(digits) > _COUNT_DIGITS:
        return None
    return min(int(digits), contract.COUNT_LIMIT)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None
