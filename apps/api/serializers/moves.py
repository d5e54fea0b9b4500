"""The move of a position, carried out or only reviewed."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import Moment, Number, Reason, Schema, Text
from apps.bookmarks.runs import LAST


class MoveAsk(Schema):
    """One of `to`, `at`, `by`, `other` and `move` says where to."""

    to = serializers.DictField(
        child=Number(min_value=-1, max_value=LAST),
        required=False,
        help_text="publisher to number; -1 is the place before the first",
    )
    at = Moment(required=False, help_text="its place at that time, which has a zone")
    by = Number(required=False, help_text="so many numbers on; back if negative")
    other = Number(required=False, help_text="the id of the position to copy")
    move = Number(required=False, help_text="restore what was before this move")
    reason = Reason(help_text="needed unless it is a dry run")
    fence = serializers.BooleanField(
        required=False, help_text="even if the holder settled within 2 minutes"
    )
    dry_run = serializers.BooleanField(required=False)


class MoveStep(Schema):
    publisher = Text(allow_blank=True)
    before = Number()
    after = Number()
    replayed = Number(help_text="numbers that were settled and come again")
    passed_over = Number(help_text="numbers that were not settled and never come")
    beyond = serializers.BooleanField(
        help_text="further than any message received so far"
    )
    poison_replayed = serializers.ListField(child=Number())
    poison_passed_over = serializers.ListField(child=Number())


class MoveDone(Schema):
    id = Number(allow_null=True, help_text="of the move; null of a dry run")
    position = Number()
    epoch = Number(help_text="of the position, by now")
    held = serializers.BooleanField(help_text="its holder settled within 2 minutes")
    whole = serializers.BooleanField(
        help_text="false: there are more open poisons than were checked"
    )
    steps = MoveStep(many=True, help_text="one for each publisher")
