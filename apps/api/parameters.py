"""What a request asks for, parsed once at the edge into frozen values."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Self

from django.http import QueryDict

from apps.api.refusals import Malformed, TooLarge
from apps.core.errors import Invalid
from apps.core.text import storable
from apps.poison.query import MAX_ID, Query
from apps.reports.services.requests import newest_over
from apps.triage.services.selection import MOST_IDS, Ask
from apps.triage.states import ASKED, Verb

MOST_MEMBERS = 1_000
TEXT_LIMIT = 255
REPORTED_DAYS = 28


def members(data: object, name: str, *, most: int = MOST_MEMBERS) -> list[object]:
    """Take the list out of `{name: [...]}`; raises Malformed where there is none."""
    found = _object(data).get(name)
    if not isinstance(found, list):
        raise Malformed(name, f'send an object with a list: {{"{name}": [...]}}')
    if len(found) > most:
        raise TooLarge(f"{name}: send at most {most} in one request.")
    return found


def members_of(data: object) -> Mapping[str, object]:
    """Take the members of an object; raises Malformed for anything else."""
    return _object(data)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The token of a preview, and why it shall be carried out."""

    token: uuid.UUID
    reason: str

    @classmethod
    def parse(cls, data: object) -> Self:
        told = _object(data)
        return cls(token=_token(told.get("token")), reason=_reason(told.get("reason")))


def ask(data: object) -> Ask:
    """Read what shall be done, and to which poisons."""
    told = _object(data)
    refuse_unknown(told, {"verb", "q", "ids", "target_topic", "ordered"})
    return Ask(
        verb=_verb(told.get("verb")),
        query=_query(told.get("q")),
        ids=_ids(told.get("ids")),
        target_topic=text("target_topic", told.get("target_topic")),
        ordered=_flag("ordered", told.get("ordered")),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Trail:
    """Which audit entries; None filters nothing. Both times are included."""

    actor: str | None
    action: str | None
    subject: str | None
    since: datetime | None
    until: datetime | None

    @classmethod
    def parse(cls, told: QueryDict) -> Self:
        return cls(
            actor=text("actor", told.get("actor")),
            action=text("action", told.get("action")),
            subject=text("subject", told.get("subject")),
            since=_moment("from", told.get("from"), time.min),
            until=_moment("to", told.get("to"), time.max),
        )


class By(StrEnum):
    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Which failure rates; both days are included, and are UTC days.

    `consumer_group` is None for all groups of a topic together; a group without a name
    is the empty text.
    """

    topic: str | None
    first: date
    last: date
    by: By
    consumer_group: str | None

    @classmethod
    def parse(cls, told: QueryDict, *, now: datetime) -> Self:
        last = _day("to", told.get("to")) or newest_over(now)
        first = _day("from", told.get("from")) or _weeks_before(last)
        if first > last:
            raise Invalid("from", f"send a day that is not after {last}")
        group = told.get("consumer_group")
        return cls(
            topic=text("topic", told.get("topic")),
            first=first,
            last=last,
            by=_by(told.get("by")),
            consumer_group=group and text("consumer_group", group),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """Whose positions; None is everybody's."""

    topic: str | None
    client_name: str | None

    @classmethod
    def parse(cls, told: QueryDict) -> Self:
        return cls(
            topic=text("topic", told.get("topic")),
            client_name=text("client_name", told.get("client_name")),
        )


def token(told: QueryDict) -> uuid.UUID:
    return _token(told.get("token"))


def _object(data: object) -> Mapping[str, object]:
    if not isinstance(data, Mapping):
        raise Malformed("", "send a JSON object")
    return data


def refuse_unknown(told: Mapping[str, object], known: set[str]) -> None:
    """Raise Invalid for a member nobody reads: it might have narrowed a selection."""
    for name in told:
        if name not in known:
            remedy = f"there is no such member; there are {', '.join(sorted(known))}"
            raise Invalid(storable(str(name), limit=TEXT_LIMIT), remedy)


def text(name: str, value: object) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > TEXT_LIMIT:
        raise Invalid(name, f"send text of at most {TEXT_LIMIT} characters")
    if value != storable(value):
        raise Invalid(name, "it holds a character that no stored text has")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | None):
        raise Invalid(name, "send true or false")
    return value is True


def _reason(value: object) -> str:
    if not isinstance(value, str | None):
        raise Invalid("reason", "send text")
    return value or ""


def _verb(value: object) -> Verb:
    if value not in ASKED:
        raise Invalid("verb", f"use one of {', '.join(ASKED)}")
    return Verb(str(value))


def _query(value: object) -> Query | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Invalid("q", "send text")
    return Query.parse(value)


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(map(_is_id, value)):
        raise Invalid("ids", "send a list of the numbers of messages")
    if len(value) > MOST_IDS:
        raise Invalid("ids", f"give at most {MOST_IDS} ids, or a query")
    return tuple(value)


def _is_id(value: object) -> bool:
    # A bool is an int to Python; True would be message 1.
    return type(value) is int and 0 < value <= MAX_ID


def _token(value: object) -> uuid.UUID:
    try:
        return uuid.UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise Invalid("token", "send the token of a preview") from None


def _by(value: str | None) -> By:
    if value not in {None, *By}:
        raise Invalid("by", f"use one of {', '.join(By)}")
    return By(value or By.DAY)


def _day(name: str, value: str | None) -> date | None:
    if not value:
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise Invalid(name, "send a day such as 2026-11-20") from None


def _weeks_before(last: date) -> date:
    try:
        return last - timedelta(days=REPORTED_DAYS - 1)
    except OverflowError:
        return date.min


def _moment(name: str, value: str | None, of_the_day: time) -> datetime | None:
    """Read a time, or a day as its first or last moment; both in UTC if not said."""
    if not value:
        return None
    try:
        if len(value) == len("2026-11-20"):
            return datetime.combine(date.fromisoformat(value), of_the_day, UTC)
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        remedy = "send a day such as 2026-11-20, or a time such as 2026-11-20T09:30Z"
        raise Invalid(name, remedy) from None
