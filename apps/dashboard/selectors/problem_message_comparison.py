"""Differences between the messages of one problem: ids, a header, error values.

All of them failed for the same reason, so the rows do not repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from apps.brokers.adapter_contract import Header
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.core.text_cleaning import readable
from apps.dashboard.selectors.messages import MASKED, is_secret
from apps.poison import headers_readable_without_body_right as names
from apps.poison import message_contents
from apps.poison.models import Poison
from apps.team.rights import Principal, Scope
from poisonguard import fingerprint

MOST_HEADERS = 50
MOST_VALUES = 8
LONGEST_NAME = 200
LONGEST_VALUE = 100

Headers = Mapping[int, Sequence[Header]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageRow:
    """A row of the list; `header` is its value in the column, None without one."""

    message: Poison
    name: str
    values: tuple[str, ...]
    header: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeaderColumn:
    """The header that the list shows; `reason` says why its values are masked.

    `may_reveal`: this person may reveal them, which the audit trail records.
    """

    name: str
    values: Mapping[int, str]
    reason: str = ""
    may_reveal: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """The rows of a list; `header_names` are those that may be chosen for a column.

    `too_slow`: Postgres took too long to read the headers, so there are none.
    """

    rows: Sequence[MessageRow]
    column: HeaderColumn | None
    header_names: Sequence[str]
    too_slow: bool

    @property
    def any_values(self) -> bool:
        return any(row.values for row in self.rows)


def between(
    messages: Sequence[Poison],
    *,
    problem_id: int,
    header: str,
    principal: Principal,
    now: datetime,
) -> Differences:
    """Build a problem's rows of messages, each with a header's value, to compare them.

    With "" for the header, it is the message type header that varies most. A header
    that is not public requires the right to read bodies, and is shown for an hour after
    the person revealed it.
    """
    loaded = unless_slow(partial(message_contents.headers_of, messages))
    headers: Headers = {} if isinstance(loaded, TooSlow) else loaded
    column = (
        _chosen_column(headers, header, principal) if header else _most_varied(headers)
    )
    if column and not column.reason and not names.is_public(column.name.encode()):
        is_revealed = message_contents.is_header_revealed(
            problem_id=problem_id, name=column.name, principal=principal, now=now
        )
        column = column if is_revealed else _unrevealed(column)
    values = varying_values([message.error_message for message in messages])
    return Differences(
        rows=[
            MessageRow(
                message=message,
                name=_name(message, headers.get(message.pk, ())),
                values=values[at],
                header=column.values.get(message.pk) if column else None,
            )
            for at, message in enumerate(messages)
        ],
        column=column,
        header_names=_comparable_headers(headers),
        too_slow=isinstance(loaded, TooSlow),
    )


def varying_values(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """List the values of each error text that its fingerprint omits, if not shared.

    A value that all the texts have is left out.
    """
    values = [fingerprint.values_of(text) for text in texts]
    shared = set(values[0]).intersection(*values) if values else set()
    return [
        tuple(value[:LONGEST_VALUE] for value in each if value not in shared)[
            :MOST_VALUES
        ]
        for each in values
    ]


def _name(message: Poison, headers: Sequence[Header]) -> str:
    """Name a message for a row by its id, or else its bookmark, shortened."""
    name = message.message_id or names.message_id(headers) or message.bookmark_text
    return name[:LONGEST_NAME]


def _comparable_headers(headers: Headers) -> list[str]:
    """List the headers by which a person can compare a problem's messages."""
    names_sent = {readable(name) for each in headers.values() for name, _ in each}
    plain = [name for name in names_sent if name.isprintable() and _is_short(name)]
    return sorted(plain, key=lambda name: (name.lower(), name))[:MOST_HEADERS]


def _is_short(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME


def _most_varied(headers: Headers) -> HeaderColumn | None:
    """Return the message type header with most distinct values in these messages.

    None if no such header has more than one value.
    """
    types = {
        name.lower()
        for each in headers.values()
        for name, _ in each
        if name.lower() in names.MESSAGE_TYPE_NAMES
    }
    columns = [_column(headers, readable(name)) for name in sorted(types)]
    varied = [column for column in columns if len(set(column.values.values())) > 1]
    return max(
        varied, key=lambda column: len(set(column.values.values())), default=None
    )


def _chosen_column(
    headers: Headers, name: str, principal: Principal
) -> HeaderColumn | None:
    """Return the values of the header that a person chose; None if no message has it.

    They are masked without the right to read them, and if the name is of a secret.
    """
    column = _column(headers, name)
    if not column.values:
        return None
    if is_secret(name):
        return _masked(column, "its name says that it is a secret")
    if names.is_public(name.encode()) or principal.may(Scope.BODIES_READ):
        return column
    return _masked(column, "reading it is a right of its own (bodies:read)")


def _column(headers: Headers, name: str) -> HeaderColumn:
    """Build a header's column: its last value in each message of a problem.

    A message without the header is left out.
    """
    lowered = name.lower()
    values = {
        pk: readable(value)[:LONGEST_VALUE]
        for pk, each in headers.items()
        for header, value in reversed(each)
        if readable(header).lower() == lowered
    }
    return HeaderColumn(name=name, values=values)


def _unrevealed(column: HeaderColumn) -> HeaderColumn:
    """Mask a header's values that the person may reveal, which is audited."""
    reason = "showing them is written to the audit trail"
    return replace(_masked(column, reason), may_reveal=True)


def _masked(column: HeaderColumn, reason: str) -> HeaderColumn:
    """Replace all values of a header by a mask, with the reason."""
    values = dict.fromkeys(column.values, MASKED)
    return HeaderColumn(name=column.name, values=values, reason=reason)
