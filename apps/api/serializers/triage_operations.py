"""Operations, and their progress."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.api.keyset_pagination import MOST_LIMIT
from apps.api.serializers.base import (
    OPTIONAL,
    AnyField,
    Flag,
    Id,
    List,
    Moment,
    Number,
    NumberOfAddress,
    QuerySchema,
    ReasonText,
    RequestSchema,
    Schema,
    Sourced,
    Text,
    TextOrNull,
    TupleSchema,
    choice,
    within,
)
from apps.triage.operation_states import (
    CONFIRMED,
    LISTED,
    RETRIED,
    STANDINGS,
    ItemKindName,
    OperationGroup,
    Verb,
)
from apps.triage.ramps import LARGEST_STEP, LONGEST_WAIT, MOST_STEPS, Ramp
from apps.triage.services.pacing import HIGHEST_RATE

VerbName = choice("Verb", Verb)
ItemKindChoice = choice("ItemKind", ItemKindName)
OF_QUERIES = (
    "of messages; of deliveries their filters, as in an address; null when messages"
    " were chosen one by one"
)
StandingName = choice("Standing", STANDINGS)
ListedStanding = choice("ListedStanding", LISTED)
RetriedStanding = choice("RetriedStanding", RETRIED)
OperationStateName = choice("OperationState", CONFIRMED)
OperationGroupName = choice("OperationGroup", OperationGroup)


class Decision(RequestSchema[dict[str, Any]]):
    # A target has no effect here, only in the preview: it is refused.
    token = Id(help_text="of a preview")
    reason = ReasonText(help_text="a drop and a give up need one")


class RampSteps(RequestSchema[Ramp]):
    """Growing steps, each sent only while the ones before it are handled."""

    steps = serializers.ListField(
        child=Number(min_value=1, max_value=LARGEST_STEP),
        min_length=1,
        max_length=MOST_STEPS,
        help_text="messages of each step; five times as many for each one beyond them",
    )
    confirmed = Number(
        default=95,
        min_value=1,
        max_value=100,
        allow_null=True,
        help_text="percent of what was sent to its own topic that must be confirmed"
        " within `wait`; null: do not ask, and let `wait` pass. It must be null where"
        " all goes to another topic, or is given back: none of that is confirmed",
    )
    came_back = Number(
        default=0,
        min_value=0,
        max_value=100,
        help_text="percent of what was sent that may come back; more pauses it",
    )
    wait = Number(
        default=300,
        min_value=1,
        max_value=int(LONGEST_WAIT.total_seconds()),
        help_text="seconds",
    )

    def value_of(self, members: dict[str, Any]) -> Ramp:
        return Ramp(**{**members, "steps": tuple(members["steps"])})


class RampState(Schema):
    steps = serializers.ListField(child=Number())
    confirmed = Number(allow_null=True)
    came_back = Number()
    wait = Number()


class Control(RequestSchema[dict[str, Any]]):
    reason = ReasonText()


class ResumeOptions(Control):
    without_ramp = Flag(
        default=False,
        help_text="send all that is left without steps; else the ramp that paused it"
        " begins again with its first step, and counts from there",
    )


class RateChange(RequestSchema[dict[str, Any]]):
    rate = Number(
        min_value=1,
        max_value=HIGHEST_RATE,
        allow_null=True,
        help_text="messages or deliveries a second, at most; null for no limit",
    )
    reason = ReasonText()


class Retry(RequestSchema[dict[str, Any]]):
    """Which messages of a requeue to preview again."""

    standings = serializers.ListField(
        child=RetriedStanding(),
        min_length=1,
        max_length=len(RETRIED),
        help_text="`silent`: sent, or unknown after the operation, and no answer for 10"
        " minutes",
    )


class ItemOutcome(Schema):
    number = Number(help_text="its place in the operation, from 0")
    poison = Number(allow_null=True, help_text="null for a delivery")
    delivery = Id(allow_null=True, help_text="null for a message")
    topic = Text(help_text="of a delivery, its endpoint's; empty once it is deleted")
    standing = StandingName()
    explanation = Text(help_text="why it was skipped, or what the broker answered")
    sent_at = Moment(allow_null=True)
    answered_at = Moment(allow_null=True)


class OperationItems(Schema):
    results = ItemOutcome(many=True)
    next = Number(
        allow_null=True, help_text="what `after` is for the next page; null at the end"
    )


class ItemsParams(QuerySchema[dict[str, Any]]):
    standing = ListedStanding(
        **OPTIONAL,
        help_text="`silent`: those that are `sent`, or `unknown` after the operation,"
        " and have no answer for 10 minutes",
    )
    after = NumberOfAddress(
        **OPTIONAL, min_value=0, max_value=2**31 - 1, help_text="a `next` of before"
    )
    limit = NumberOfAddress(**OPTIONAL, min_value=1, max_value=MOST_LIMIT)


class OperationsQuery(QuerySchema[dict[str, Any]]):
    show = OperationGroupName(
        **OPTIONAL,
        help_text="`needs-you`: paused, waiting for a broker, or with messages that"
        " were refused, came back or are unknown, more than were acknowledged; all if"
        " left out",
    )


class Accepted(Schema):
    id = Number(help_text="of the operation")


class Acknowledgement(Schema):
    actor = Text()
    at = Moment()
    messages = Number(
        source="troubled", help_text="that were refused, came back or are unknown"
    )


class OperationRow(Sourced):
    id = Number()
    items = ItemKindChoice(source="kind", help_text="what they are")
    verb = VerbName()
    state = OperationStateName()
    actor = Text()
    q = Text(source="query", allow_null=True, help_text=OF_QUERIES)
    target_topic = Text(source="target_topic.name", allow_null=True)
    ordered = Flag(help_text="one after the other")
    undo_of = Number(source="undo_of_id", allow_null=True)
    reason = Text()
    total = Number()
    rate_limit = Number(
        source="rate", allow_null=True, help_text="items a second, at most"
    )
    ramp = RampState(allow_null=True)
    items_judged = Number(
        source="judged",
        help_text="items that it has taken hold of, decided or skipped so far",
    )
    paused_because = Text(help_text="why it paused itself; empty if it did not")
    trouble = Text(help_text="why it is waiting; empty when it is not")
    retry_at = Moment(allow_null=True)
    as_of = Moment(source="created_at")
    confirmed_at = Moment()
    finished_at = Moment(allow_null=True)
    acknowledged = Acknowledgement(
        source="acknowledgement",
        allow_null=True,
        help_text="by a person, the last time",
    )


class Counts(Schema):
    """By standing; they always add up to the total."""

    def get_fields(self) -> dict[str, AnyField]:
        return {name: Number() for name in STANDINGS}


class SingledOut(TupleSchema):
    poison = Number()
    reason = Text()


class OperationDetail(OperationRow):
    counts = Counts(source="progress.tally.counts")
    acts_on = Number(
        source="progress.tally.acts_on", help_text="the total without the skipped ones"
    )
    acted = Number(
        source="progress.tally.acted",
        help_text="done: sent, given back, dropped, restored, made due or given up",
    )
    given_back_to = TextOrNull(
        source="progress.operation.given_back_to",
        help_text="the dead-letter queue, of a give back",
    )
    silent = Number(
        source="progress.silent",
        help_text="sent, or unknown after the operation, and no answer for 10 min",
    )
    refused = SingledOut(many=True, help_text="the first 200 messages")
    skipped = SingledOut(many=True, help_text="the first 200 messages")
    rate = serializers.FloatField(
        source="progress.pace.rate",
        allow_null=True,
        help_text="items a second so far",
    )
    eta = Moment(
        source="progress.eta",
        allow_null=True,
        help_text="by its speed since it last began to go on, or its limit changed;"
        " null with a ramp, while it waits for a broker, and unless it goes on",
    )

    def get_fields(self) -> dict[str, AnyField]:
        row = within("progress.operation", OperationRow().get_fields())
        return {**super().get_fields(), **row}


class Operations(List):
    results = OperationRow(many=True)
