"""What a reader of the stream asks for: which lists, and after which event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from django.http import QueryDict

from apps.core.errors import Invalid
from poisonguard.contract import NAME_LIMIT, is_name

MOST_TOPICS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class EventId:
    """The id of a reader's last event: an epoch, and a revision of each topic."""

    epoch: str
    revisions: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a stream's event id; an invalid one gets an epoch that no store has."""
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
        """Parse a stream's topics, group and event to resume after; raises Invalid."""
        topics = tuple(_name("topic", name) for name in params.getlist("topic"))
        if not 0 < len(set(topics)) == len(topics) <= MOST_TOPICS:
            raise Invalid("topic", f"name 1 to {MOST_TOPICS} topics, each of them once")
        after = last_event_id or params.get("after")
        group = params.get("consumer_group")
        return cls(
            topics=topics,
            consumer_group=None if group is None else _name("consumer_group", group),
            after=EventId.parse(after) if after else None,
        )


def _name(field: str, value: str) -> str:
    """Return a skip stream's topic or group; raises Invalid for an unusable name."""
    if not is_name(value):
        remedy = (
            f"send a name of 1 to {NAME_LIMIT} characters, none a control character"
        )
        raise Invalid(field, remedy)
    return value


def _is_number(text: str) -> bool:
    # A number of more than 18 digits may not fit into a bigint of Postgres.
    return text.isascii() and text.isdigit() and len(text) <= len(str(10**17))
