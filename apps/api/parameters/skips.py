"""What a request about skips asks for, parsed once at the edge into frozen values."""

from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from django.http import QueryDict

from apps.api.parameters.base import (
    TEXT_LIMIT,
    flag,
    members_of,
    moment,
    reason,
    refuse_unknown,
)
from apps.core.errors import Invalid
from apps.poison.matching import Matcher
from apps.poison.skip_counts import AppliedSkip
from poisonguard.contract import COUNT_LIMIT

MOST_TOPICS = 100
MAX_ID = 2**63 - 1
MEMBERS = {
    *("topic", "consumer_group", "matcher", "handler_version", "expires_at"),
    *("reason", "poison", "everything"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which list; None for the skips of all groups."""

    topic: str
    consumer_group: str | None

    @classmethod
    def parse(cls, told: QueryDict) -> Self:
        return cls(
            topic=_name("topic", told.get("topic")),
            consumer_group=_optional("consumer_group", told.get("consumer_group")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The id of a reader's last event: an epoch, and a revision of each topic."""

    epoch: str
    revisions: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id; one that is none is of no epoch, and so of no store."""
        epoch, _, numbers = text.partition(".")
        revisions = numbers.split(",")
        if not all(_is_number(revision) for revision in revisions):
            return cls(epoch="", revisions=())
        return cls(epoch=epoch, revisions=tuple(map(int, revisions)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """Which lists a reader follows, and after which event; None begins at the head."""

    topics: tuple[str, ...]
    consumer_group: str | None
    after: Place | None

    @classmethod
    def parse(cls, told: QueryDict, *, last_event_id: str | None) -> Self:
        topics = tuple(_name("topic", name) for name in told.getlist("topic"))
        if not 0 < len(set(topics)) == len(topics) <= MOST_TOPICS:
            raise Invalid("topic", f"name 1 to {MOST_TOPICS} topics, each of them once")
        after = last_event_id or told.get("after")
        return cls(
            topics=topics,
            consumer_group=_optional("consumer_group", told.get("consumer_group")),
            after=Place.parse(after) if after else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSkip:
    """What shall be passed over, by whom, and until when."""

    topic: str
    consumer_group: str | None
    matcher: Matcher
    handler_version: str | None
    expires_at: datetime | None
    reason: str
    poison_id: int | None
    everything: bool

    @classmethod
    def parse(cls, data: object) -> Self:
        told = members_of(data)
        refuse_unknown(told, MEMBERS)
        return cls(
            topic=_name("topic", told.get("topic")),
            consumer_group=_optional("consumer_group", told.get("consumer_group")),
            matcher=Matcher.parse(told.get("matcher")),
            handler_version=_optional("handler_version", told.get("handler_version")),
            expires_at=_optional_moment("expires_at", told.get("expires_at")),
            reason=reason(told.get("reason")),
            poison_id=_optional_id("poison", told.get("poison")),
            everything=flag("everything", told.get("everything")),
        )


def applied(member: object) -> AppliedSkip:
    """Read one member of `applied`; raises Invalid with the place and the remedy."""
    if not isinstance(member, Mapping):
        raise Invalid("", "send a JSON object")
    told: Mapping[str, object] = member
    return AppliedSkip(
        skip=_id("skip", told.get("skip")),
        consumer_group=_name("consumer_group", told.get("consumer_group")),
        client_name=_name("client_name", told.get("client_name")),
        count=_count("count", told.get("count")),
        last_at=moment("last_at", told.get("last_at")),
        report=_optional_uuid("report", told.get("report")),
        handled=flag("handled", told.get("handled")),
    )


def _name(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > TEXT_LIMIT:
        raise Invalid(field, f"send a name of 1 to {TEXT_LIMIT} characters")
    if any(unicodedata.category(each) in {"Cc", "Cs"} for each in value):
        raise Invalid(
            field, "it holds a control character or half a surrogate pair: remove it"
        )
    return value


def _optional(field: str, value: object) -> str | None:
    return None if value is None else _name(field, value)


def _is_number(text: str) -> bool:
    # Beyond 18 digits it could be beyond what Postgres counts to.
    return text.isascii() and text.isdigit() and len(text) <= len(str(10**17))


def _whole(field: str, value: object, most: int) -> int:
    # A bool is an int to Python.
    if type(value) is not int or not 0 <= value <= most:
        raise Invalid(field, f"send a whole number from 0 to {most}")
    return value


def _id(field: str, value: object) -> int:
    return _whole(field, value, MAX_ID)


def _optional_id(field: str, value: object) -> int | None:
    return None if value is None else _id(field, value)


def _count(field: str, value: object) -> int:
    return _whole(field, value, COUNT_LIMIT)


def _optional_moment(field: str, value: object) -> datetime | None:
    return None if value is None else moment(field, value)


def _optional_uuid(field: str, value: object) -> uuid.UUID | None:
    if value is None:
        return None
    try:
        return uuid.UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise Invalid(field, "send a UUID") from None
