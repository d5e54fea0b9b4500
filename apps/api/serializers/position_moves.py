"""The move of a position, carried out or only reviewed."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from apps.api.serializers.base import (
    OPTIONAL,
    ByName,
    Flag,
    Moment,
    Number,
    PlainText,
    ReasonText,
    RequestSchema,
    Schema,
    Text,
)
from apps.bookmarks.consumer_request_parsing import EPOCH_LIMIT
from apps.bookmarks.runs_of_settled_positions import LAST, NOWHERE, size
from apps.poison.query_language import MAX_ID
from apps.triage.services.position_moves import MoveTarget, Strategy

# The members that say where to, of which a request has one.
STRATEGIES = {
    "to": Strategy.EXACT,
    "at": Strategy.TIME,
    "by": Strategy.SHIFT,
    "other": Strategy.COPY,
    "move": Strategy.RESTORE,
}
# Formatted by rest_framework, so its braces are doubled.
NO_PLACES = 'send an object of publisher to number: {{"": 42}}'


class Places(ByName):
    names = PlainText()
    child = Number(min_value=NOWHERE, max_value=LAST)
    default_error_messages: ClassVar = {
        "not_a_dict": NO_PLACES,
        "empty": NO_PLACES,
    }


class MoveAsk(RequestSchema[dict[str, Any]]):
    """One of `to`, `at`, `by`, `other` and `move` says where to."""

    to = Places(
        **OPTIONAL,
        allow_empty=False,
        help_text="publisher to number; -1 is the place before the first",
    )
    at = Moment(**OPTIONAL, help_text="its place at that time, which has a zone")
    by = Number(
        **OPTIONAL,
        min_value=-EPOCH_LIMIT,
        max_value=EPOCH_LIMIT,
        help_text="so many numbers on; back if negative",
    )
    other = Number(
        **OPTIONAL,
        min_value=0,
        max_value=MAX_ID,
        help_text="the id of the position to copy",
    )
    move = Number(
        **OPTIONAL,
        min_value=0,
        max_value=MAX_ID,
        help_text="restore what was before this move",
    )
    reason = ReasonText(help_text="needed unless it is a dry run")
    fence = Flag(default=False, help_text="even if the holder settled within 2 minutes")
    # Null is refused: it would turn an intended dry run into a move.
    dry_run = Flag(default=False)

    def value_of(self, members: dict[str, Any]) -> dict[str, Any]:
        """Return a position's move from a request; its only target becomes `wish`.

        Raises ValidationError unless the request names exactly one target.
        """
        values = {name: members.pop(name) for name in STRATEGIES}
        wishes = {name: each for name, each in values.items() if each is not None}
        if len(wishes) != 1:
            remedy = f"send one of {', '.join(STRATEGIES)}"
            raise serializers.ValidationError({"to": remedy})
        (name,) = wishes
        return {"wish": MoveTarget(strategy=STRATEGIES[name], **wishes), **members}


class Size(Number):
    def to_representation(self, value: Any) -> int:
        return size(value)


class PoisonId(Number):
    def to_representation(self, value: Any) -> Any:
        return value.id


class MoveStep(Schema):
    publisher = Text(source="change.publisher", allow_blank=True)
    before = Number(source="change.old")
    after = Number(source="change.new")
    replayed = Size(
        source="change.replayed", help_text="numbers that were settled and come again"
    )
    passed_over = Size(
        source="change.passed_over",
        help_text="numbers that were not settled and never come",
    )
    beyond = Flag(help_text="further than any message received so far")
    poison_replayed = serializers.ListField(child=PoisonId(), source="replayed")
    poison_passed_over = serializers.ListField(child=PoisonId(), source="passed_over")


class MoveDone(Schema):
    # Of a review, and of the move that followed it, or None.
    id = Number(
        source="move.pk", allow_null=True, help_text="of the move; null of a dry run"
    )
    position = Number(source="review.position.pk")
    epoch = Number(help_text="of the position, by now")
    held = Flag(help_text="its holder settled within 2 minutes")
    whole = Flag(
        source="review.whole",
        help_text="false: there are more open poisons than were checked",
    )
    steps = MoveStep(
        source="review.steps", many=True, help_text="one for each publisher"
    )
