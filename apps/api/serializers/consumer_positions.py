"""Positions of consumers, and how to open and settle them."""

from __future__ import annotations

from functools import partial
from typing import Any

from rest_framework import serializers

from apps.api.serializers.base import (
    NAME_LIMIT,
    OPTIONAL,
    AnyField,
    Flag,
    List,
    Moment,
    Name,
    Number,
    PlainText,
    QuerySchema,
    Schema,
    Text,
    choice,
)
from apps.bookmarks.consumer_request_parsing import (
    BOOKMARK_LIMIT,
    EPOCH_LIMIT,
    MOST_RUNS,
)
from apps.bookmarks.position_keepers import PositionSource
from apps.bookmarks.runs_of_settled_positions import LAST
from apps.bookmarks.services import position_settling

# Enough for a process that settles for some thousand consumers in one request.
MOST_UPDATES = 10_000

# Opening and settling are parsed by apps.bookmarks.consumer_request_parsing, and
# rendered by shapes: there may be thousands of members in a request.
Place = partial(Number, min_value=0, max_value=LAST)
SettledStatus = choice("SettledStatus", position_settling.SettleStatus)
PositionSourceName = choice("PositionSource", PositionSource)


class Holder(Schema):
    """Without a sub id or a topic, all positions of the client."""

    client_name = Name()
    sub_id = Name(**OPTIONAL)
    topic = Name(**OPTIONAL)
    replays = Flag(
        **OPTIONAL,
        help_text="a reader that starts without a position gets old messages again;"
        " true if left out",
    )


class SettledRun(serializers.ListField):
    """The first and the last number of a run, both settled."""

    def __init__(self, **_: object) -> None:
        super().__init__(child=Place(), min_length=2, max_length=2)


class OpenedPosition(Schema):
    """One publisher's mark; -1 is the place before its first message."""

    position = Number(help_text="its id")
    sub_id = Text()
    topic = Text()
    publisher = Text(allow_blank=True)
    processed = Number(help_text="the watermark: all up to it is settled")
    persisted = Number(allow_null=True, help_text="null where it is not tracked")
    received = Number(allow_null=True, help_text="the highest number that was received")
    settled = serializers.ListField(
        child=SettledRun(), help_text="what is settled above the watermark"
    )
    resume = Number(help_text="begin after it: the lesser of processed and persisted")
    bookmark = Text(
        allow_blank=True, help_text="of the watermark, or of a place before it"
    )


class Opened(Schema):
    epoch = Number(help_text="to settle under")
    positions = OpenedPosition(many=True, help_text="one for each known publisher")


class PositionUpdate(Schema):
    client_name = Name()
    sub_id = Name()
    topic = Name()
    epoch = Number(
        min_value=1, max_value=EPOCH_LIMIT, help_text="that opening the position gave"
    )
    publisher = PlainText(**OPTIONAL)
    received = Place(**OPTIONAL)
    settled = serializers.ListField(
        **OPTIONAL, child=SettledRun(), max_length=MOST_RUNS
    )
    persisted = Place(**OPTIONAL)
    bookmark = PlainText(
        **OPTIONAL,
        max_length=BOOKMARK_LIMIT,
        help_text="of the highest number in `settled`",
    )


class PositionUpdates(Schema):
    updates = serializers.ListField(child=PositionUpdate(), max_length=MOST_UPDATES)


class PositionAnswer(Schema):
    status = SettledStatus()
    detail = Text(required=False, help_text="what to do, unless it is ok")
    pointer = Text(required=False, help_text="JSON Pointer into the member")
    pressure = serializers.FloatField(
        required=False,
        help_text="from 0.75 on: how much of what a position can hold is holes",
    )


class PositionAnswers(Schema):
    results = PositionAnswer(many=True, help_text="one for each member, in order")


class PositionQuery(QuerySchema[dict[str, Any]]):
    topic = Text(
        default=None,
        allow_blank=True,
        max_length=NAME_LIMIT,
        help_text="the name of one; all that the key sees if left out",
    )
    client_name = Text(
        default=None,
        allow_blank=True,
        max_length=NAME_LIMIT,
        help_text="of the consumer",
    )


class RunCount(Number):
    def to_representation(self, value: Any) -> int:
        return len(value)


class Mark(Schema):
    # Of a mark with the head of its publisher.
    publisher = Text(source="mark.publisher", allow_blank=True)
    processed = Number(
        source="mark.processed", help_text="-1 before anything is settled"
    )
    bookmark = Text(source="mark.bookmark", allow_blank=True)
    received = Number(source="mark.received", allow_null=True)
    persisted = Number(source="mark.persisted", allow_null=True)
    ahead = RunCount(
        source="mark.ahead", help_text="runs that are settled above the watermark"
    )
    head = Number(allow_null=True, help_text="null where no broker gives it")
    lag = Number(
        source="mark.lag",
        allow_null=True,
        help_text="messages; null where it is unknown",
    )
    pending = Number(source="mark.pending", allow_null=True)
    settled_at = Moment(source="mark.settled_at", allow_null=True)


class _PositionRow(Schema):
    id = Number(source="position.pk")
    topic = Text(source="position.topic.name")
    consumer_group = Text(source="position.consumer_group", allow_blank=True)
    client_name = Text(source="position.client_name", allow_blank=True)
    sub_id = Text(source="position.sub_id", allow_blank=True)
    epoch = Number(source="position.epoch", help_text="0 where the broker keeps it")
    observed_at = Moment(source="position.observed_at")
    moved_at = Moment(source="position.moved_at")
    marks = Mark(many=True)


class Position(_PositionRow):
    # Not a class attribute: serializers of rest_framework use this name themselves.
    def get_fields(self) -> dict[str, AnyField]:
        kept_by = PositionSourceName(source="position.source")
        return {**super().get_fields(), "source": kept_by}


class Positions(List):
    results = Position(many=True)
