"""Positions of consumers, and how to open and settle them."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import (
    AnyField,
    List,
    Moment,
    Number,
    Schema,
    Text,
    choice,
)
from apps.bookmarks.consumer_requests import MOST_RUNS
from apps.bookmarks.runs import LAST
from apps.bookmarks.services import settling
from apps.bookmarks.sources import Source as KeptBy

SettledStatus = choice("SettledStatus", settling.SettleStatus)
PositionSource = choice("PositionSource", KeptBy)


class Holder(Schema):
    """Without a sub id or a topic, all positions of the client."""

    client_name = Text()
    sub_id = Text(required=False)
    topic = Text(required=False)
    replays = serializers.BooleanField(
        required=False,
        help_text="a reader that starts without a position gets old messages again;"
        " true if left out",
    )


class SettledRun(serializers.ListField):
    """The first and the last number of a run, both settled."""

    def __init__(self, **_: object) -> None:
        number = Number(min_value=0, max_value=LAST)
        super().__init__(child=number, min_length=2, max_length=2)


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
    client_name = Text()
    sub_id = Text()
    topic = Text()
    epoch = Number(min_value=1, help_text="that opening the position gave")
    publisher = Text(required=False, allow_blank=True)
    received = Number(required=False, min_value=0, max_value=LAST)
    settled = serializers.ListField(
        child=SettledRun(), required=False, max_length=MOST_RUNS
    )
    persisted = Number(required=False, min_value=0, max_value=LAST)
    bookmark = Text(required=False, help_text="of the highest number in `settled`")


class PositionUpdates(Schema):
    updates = PositionUpdate(many=True)


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


class Mark(Schema):
    publisher = Text(allow_blank=True)
    processed = Number(help_text="-1 before anything is settled")
    bookmark = Text(allow_blank=True)
    received = Number(allow_null=True)
    persisted = Number(allow_null=True)
    ahead = Number(help_text="runs that are settled above the watermark")
    head = Number(allow_null=True, help_text="null where no broker gives it")
    lag = Number(allow_null=True, help_text="messages; null where it is unknown")
    pending = Number(allow_null=True)
    settled_at = Moment(allow_null=True)


class _PositionRow(Schema):
    id = Number()
    topic = Text()
    consumer_group = Text(allow_blank=True)
    client_name = Text(allow_blank=True)
    sub_id = Text(allow_blank=True)
    epoch = Number(help_text="0 where the broker keeps it")
    observed_at = Moment()
    moved_at = Moment()
    marks = Mark(many=True)


class Position(_PositionRow):
    # Not a class attribute: serializers of rest_framework use this name themselves.
    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), "source": PositionSource()}


class Positions(List):
    results = Position(many=True)
