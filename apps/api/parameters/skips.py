"""Parse requests about skips into frozen values."""

from __future__ import annotations

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
from poisonguard.contract import COUNT_LIMIT, has_control_character, uuid_of

MOST_TOPICS = 100
MAX_ID = 2**63 - 1
MEMBERS = {
    *("topic", "consumer_group", "matcher", "handler_version", "expires_at"),
    *("reason", "poison", "everything"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipListParams:
    """Which list of skips; without a group, the skips of all groups."""

    topic: str
    consumer_group: str | None

    @classmethod
    def parse(cls, params: QueryDict) -> Self:
        return cls(
            topic=_name("topic", params.get("topic")),
            consumer_group=_optional("consumer_group", params.get("consumer_group")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EventId:
    """The id of a reader's last event: an epoch, and a revision of each topic."""

    epoch: str
    revisions: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id; an invalid one gets an epoch that no store has."""
        epoch, _, numbers = text.partition(".")
        revisions = numbers.split(",")
        if not all(_is_number(revision) for revision in revisions):
            return cls(epoch="", revisions=())
        return cls(epoch=epoch, revisions=tuple(map(int, revisions)))


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamParams:
    """Which lists a reader follows, and after which event; None begins at the head."""

    topics: tuple[str, ...]
    consumer_group: str | None
    after: EventId | None

    @classmethod
    def parse(cls, params: QueryDict, *, last_event_id: str | None) -> Self:
        topics = tuple(_name("topic", name) for name in params.getlist("topic"))
        if not 0 < len(set(topics)) == len(topics) <= MOST_TOPICS:
            raise Invalid("topic", f"name 1 to {MOST_TOPICS} topics, each of them once")
        after = last_event_id or params.get("after")
        return cls(
            topics=topics,
            consumer_group=_optional("consumer_group", params.get("consumer_group")),
            after=EventId.parse(after) if after else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSkip:
    """A skip to add: what to pass over, which group does, and until when."""

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
        members = members_of(data)
        refuse_unknown(members, MEMBERS)
        return cls(
            topic=_name("topic", members.get("topic")),
            consumer_group=_optional("consumer_group", members.get("consumer_group")),
            matcher=Matcher.parse(members.get("matcher")),
            handler_version=_optional(
                "handler_version", members.get("handler_version")
            ),
            expires_at=_optional_moment("expires_at", members.get("expires_at")),
            reason=reason(members.get("reason")),
            poison_id=_optional_id("poison", members.get("poison")),
            everything=flag("everything", members.get("everything")),
        )


def parse_applied(member: object) -> AppliedSkip:
    """Read one member of `applied`; raises Invalid with the field and the remedy."""
    if not isinstance(member, Mapping):
        raise Invalid("", "send a JSON object")
    members: Mapping[str, object] = member
    return AppliedSkip(
        skip=_id("skip", members.get("skip")),
        consumer_group=_name("consumer_group", members.get("consumer_group")),
        client_name=_name("client_name", members.get("client_name")),
        count=_count("count", members.get("count")),
        last_at=moment("last_at", members.get("last_at")),
        report=_optional_uuid("report", members.get("report")),
        handled=flag("handled", members.get("handled")),
    )


def _name(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > TEXT_LIMIT:
        raise Invalid(field, f"send a name of 1 to {TEXT_LIMIT} characters")
    if has_control_character(value):
        raise Invalid(
            field, "it holds a control character or half a surrogate pair: remove it"
        )
    return value


def _optional(field: str, value: object) -> str | None:
    return None if value is None else _name(field, value)


def _is_number(text: str) -> bool:
    # A number of more than 18 digits may not fit into a bigint of Postgres.
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
    parsed = uuid_of(value) if isinstance(value, str) else None
    if parsed is None:
        raise Invalid(field, "send a UUID, as 8-4-4-4-12 hexadecimal digits")
    return parsed
