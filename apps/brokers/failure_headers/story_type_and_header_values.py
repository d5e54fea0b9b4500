"""The story in a dead letter's headers, and safe readers for their values.

Header names are matched without regard to case. Of a header that occurs twice the last
one counts: a framework that gives up on a message appends its headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from apps.brokers.adapter_contract import Header
from poisonguard import contract

# A number in an AMQP table, with its type as our adapter writes it.
_TYPED = re.compile(r'\{"\$[a-zA-Z]": ?(\d+)\}', re.ASCII)
_COUNT_DIGITS = len(str(contract.COUNT_LIMIT))
# Fields that describe any message, failed or not.
_OF_ANY_MESSAGE = frozenset({"content_type", "message_type", "redrive"})


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialStory:
    """The story in one vocabulary; a missing value is "" or None.

    The texts are decoded with replacement and may hold NUL. `origin` is where the
    message was read before it failed, in the words of the vocabulary.
    """

    cause: contract.Cause | None = None
    exception_type: str = ""
    exception_message: str = ""
    exception_traceback: str = ""
    original_bookmark: str | None = None
    origin: str = ""
    consumer_group: str = ""
    client_name: str = ""
    attempts: int | None = None
    failed_at: datetime | None = None
    handler_version: str | None = None
    content_type: str = ""
    message_type: str = ""
    redrive: str | None = None

    @property
    def says_why(self) -> bool:
        """Tell whether any field of this story is about a failure."""
        return any(
            has_value(getattr(self, field.name))
            for field in fields(PartialStory)
            if field.name not in _OF_ANY_MESSAGE
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Story(PartialStory):
    """The story from all vocabularies; `told_by` names those with a failure.

    A dead letter without a cause was `rejected`: a producer or an operator put it into
    the queue.
    """

    cause: contract.Cause = contract.Cause.REJECTED
    told_by: tuple[str, ...] = ()


class HeaderMap:
    """The headers of one message, by their names in small letters."""

    def __init__(self, headers: Sequence[Header]) -> None:
        self._values = {name.lower(): value for name, value in headers}

    def __contains__(self, name: str) -> bool:
        return name.encode() in self._values

    def raw(self, name: str) -> bytes:
        """Return the bytes of a header; b"" without it."""
        return self._values.get(name.encode(), b"")

    def text(self, name: str) -> str:
        """Return a header as text; "" without it."""
        return self.raw(name).decode("utf-8", "replace")

    def count(self, name: str) -> int | None:
        """Return a header's decimal number from 0 on; None for anything else."""
        return parse_count(self.text(name))

    def moment(self, name: str) -> datetime | None:
        """Return a header's ISO-8601 time with a zone; None for anything else."""
        return parse_moment(self.text(name))

    def among(
        self, names: Iterable[str] = (), *, prefixes: tuple[str, ...] = ()
    ) -> set[bytes]:
        """List a message's header names that equal `names` or begin with `prefixes`."""
        exact_names = {name.encode() for name in names}
        beginnings = tuple(prefix.encode() for prefix in prefixes)
        return {
            name
            for name in self._values
            if name in exact_names or name.startswith(beginnings)
        }

    def first(self, *names: str) -> str:
        """Return the first text that is not empty of these headers, "" without one."""
        return next((text for text in map(self.text, names) if text), "")


def has_value(value: object) -> bool:
    """Tell whether a field of a failure's story was set."""
    return value is not None and value != ""


def parse_count(text: str) -> int | None:
    """Parse a header's number from 0 on, perhaps with its type; None otherwise."""
    typed = _TYPED.fullmatch(text)
    digits = typed[1] if typed else text.strip()
    # int() accepts other scripts' digits and underscores, and refuses 5,000 digits.
    if not digits.isascii() or not digits.isdigit() or len(digits) > _COUNT_DIGITS:
        return None
    return min(int(digits), contract.COUNT_LIMIT)


def attempts_of_retries(count: int | None) -> int | None:
    """Convert a failed message's number of retries into a number of attempts."""
    return None if count is None else min(count + 1, contract.COUNT_LIMIT)


def parse_moment(text: str) -> datetime | None:
    """Parse a header's ISO-8601 time with a zone; None for anything else."""
    try:
        time = datetime.fromisoformat(text.strip())
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        return None
