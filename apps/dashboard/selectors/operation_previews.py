"""The data of the page of a preview: what an operation would do."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef

from apps.brokers.adapter_contract import Ordering
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.models import Lane, LaneState
from apps.core.errors import Absent, Unavailable
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.dashboard.selectors.skips import Swallowed
from apps.poison.models import Redrive
from apps.poison.query_language import Query, Term
from apps.redelivery.models import Delivery, DeliveryItem
from apps.redelivery.services import delivery_items
from apps.team.rights import Principal
from apps.triage.errors import Stale
from apps.triage.models import Operation
from apps.triage.operation_states import (
    EXPLAINED,
    SENDS,
    UNDO_WINDOW,
    OperationState,
    Verb,
)
from apps.triage.preview_breakdown import Largest
from apps.triage.services import preview_summaries, requeues_in_vain
from apps.triage.services.earlier_layout_conversion import convert_preview
from apps.triage.services.operation_redirects import targets_of, topics_that_stay
from apps.triage.services.preview_summaries import PreviewSummary
from apps.triage.services.selection_requests import SelectionRequest
from poisonguard.contract import uuid_of

MOST_COPIED = 50
MOST_SAMPLES = 3
# To drop or give up more than this, a person must type the number.
MANY = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewDetail:
    operation: Operation
    summary: PreviewSummary
    breakdown: list[tuple[str, Largest]]
    targets: list[str]
    swallowed: Swallowed | TooSlow | None
    may_order: bool = False
    confirms: bool | TooSlow = False
    moves_some: bool = False
    moves_all: bool = False
    brokers_away: tuple[str, ...] = ()
    deliveries: tuple[Delivery, ...] = ()

    @property
    def seconds(self) -> int | None:
        """Return how many seconds an operation takes at its rate, at least.

        None without a rate.
        """
        rate = self.operation.rate
        return rate and -(-self.summary.will_act // rate)

    @property
    def common(self) -> list[tuple[str, str]]:
        """List what all of a preview's items have in common: title and value."""
        return [
            (title, largest.values[0][0])
            for title, largest in self.breakdown
            if largest.is_one_group
        ]

    @property
    def divided(self) -> list[tuple[str, Largest]]:
        """Return the breakdowns of a preview's items that have more than one group."""
        return [each for each in self.breakdown if not each[1].is_one_group]

    @property
    def api_body(self) -> dict[str, object]:
        """Return the body of the API call that makes this preview.

        It has a bounded number of ids.
        """
        body: dict[str, object] = {"verb": self.operation.verb}
        if not self.operation.is_about_poisons:
            body["deliveries"] = delivery_items.filter_of(self.operation)
        elif self.operation.query is not None:
            body["q"] = self.operation.query
        else:
            chosen = self.operation.items.values_list("poison_id", flat=True)
            body["ids"] = list(chosen.order_by("pk")[:MOST_COPIED])
        if self.operation.target_topic:
            body["target_topic"] = self.operation.target_topic.name
        if self.operation.ordered:
            body["ordered"] = True
        return body

    @property
    def has_form(self) -> bool:
        """Tell whether there is something to confirm, or by another target topic."""
        may_reroute = bool(self.targets) and self.summary.may_go_elsewhere
        is_open = self.operation.state == OperationState.PREVIEW
        return is_open and (self.summary.will_act > 0 or may_reroute)

    @property
    def must_type(self) -> bool:
        """Tell whether a person must type how many items are dropped or given up.

        Only where these are many.
        """
        return self.must_say_why and self.summary.will_act > MANY

    @property
    def undo_days(self) -> int:
        """Return for how many days a drop can be undone after its end."""
        return UNDO_WINDOW.days

    @property
    def must_say_why(self) -> bool:
        """Tell whether a reason is required: for a drop or a give up."""
        return self.operation.verb in EXPLAINED


def preview(token: str, principal: Principal, *, now: datetime) -> PreviewDetail:
    """Load an operation's preview that this principal made; raises Stale if none."""
    previews = Operation.objects.filter(token=_uuid(token), actor=str(principal.actor))
    operation = previews.select_related("target_topic").first()
    if operation is None:
        raise Stale("This preview is gone: make a new one.", new_preview=None)
    return preview_detail(convert_preview(operation), principal, now=now)


def preview_detail(
    operation: Operation, principal: Principal, *, now: datetime
) -> PreviewDetail:
    """Load what the page of an operation's preview shows: counts, targets, warnings."""
    summary = preview_summaries.summarize(operation=operation)
    if not operation.is_about_poisons:
        return PreviewDetail(
            operation=operation,
            summary=summary,
            breakdown=list(summary.breakdown.groups),
            targets=[],
            swallowed=None,
            deliveries=_first_deliveries(operation),
        )
    topics = preview_summaries.topics_of(operation, summary.breakdown)
    staying = topics_that_stay(operation, topics)
    return PreviewDetail(
        operation=operation,
        summary=summary,
        breakdown=[
            ("topic", summary.topics),
            ("consumer", summary.breakdown.consumers),
            ("state", summary.breakdown.states),
            ("age", summary.breakdown.ages),
        ],
        targets=_target_topics(principal) if operation.verb == Verb.REDRIVE else [],
        swallowed=_messages_skipped_again(summary, now=now),
        confirms=operation.verb == Verb.REDRIVE and _have_confirmed(staying),
        moves_some=len(staying) < len(topics),
        moves_all=bool(topics) and not staying,
        brokers_away=_brokers_away(operation, topics, now=now),
        may_order=operation.verb == Verb.REDRIVE and _keep_order(operation, summary),
    )


def _first_deliveries(operation: Operation) -> tuple[Delivery, ...]:
    """Load some deliveries that the previewed operation will act on."""
    skipped = operation.skipped.filter(number=OuterRef("number"))
    items = DeliveryItem.objects.filter(~Exists(skipped), operation=operation)
    first = list(
        items.order_by("number").values_list("delivery", flat=True)[:MOST_SAMPLES]
    )
    rows = Delivery.objects.filter(pk__in=first).select_related("endpoint")
    return tuple(rows.order_by("pk"))


def _brokers_away(
    operation: Operation, topics: list[int], *, now: datetime
) -> tuple[str, ...]:
    """Name the brokers that an operation would send to and lanes cannot reach.

    Any lane of the broker counts: a target topic may have none. None are named if it
    sends no messages.
    """
    if operation.verb not in SENDS:
        return ()
    targets = Topic.objects.filter(pk__in=targets_of(operation, topics))
    lanes = Lane.objects.filter(topic__broker__in=targets.values("broker"))
    away = lanes.filter(state=LaneState.AWAY).select_related("topic__broker")
    return tuple(
        sorted(
            {
                lane.topic.broker.name
                for lane in away
                if lane.topic.broker and lane.is_heard(now)
            }
        )
    )


def _have_confirmed(topics: set[int]) -> bool | TooSlow:
    """Tell whether consumers of these topics ever confirmed a redrive, or TooSlow."""
    confirmed = Redrive.objects.filter(confirmed_at__isnull=False, topic__in=topics)
    return unless_slow(confirmed.exists)


def _keep_order(operation: Operation, summary: PreviewSummary) -> bool:
    """Tell whether every topic that an operation sends to keeps an order of messages.

    False where none does, or a broker's client is missing.
    """
    target = operation.target_topic
    own = [summary.redirects.get(name, name) for name, _ in summary.by_topic]
    names = [target.name] if target else own
    topics = Topic.objects.filter(name__in=names).exclude(broker=None)
    topic_list = list(topics.select_related("broker"))
    try:
        keep = [brokers.ordering_of(topic) is not Ordering.NONE for topic in topic_list]
    except Unavailable:
        return False  # the client of a broker is missing: nothing can be sent there
    return bool(keep) and all(keep)


def _messages_skipped_again(
    summary: PreviewSummary, *, now: datetime
) -> Swallowed | TooSlow:
    """List the messages of a redrive that consumers would skip again, or TooSlow."""
    matches = requeues_in_vain.of_preview(summary, now=now)
    if isinstance(matches, TooSlow):
        return matches
    return Swallowed.of(matches, now=now)


def _uuid(text: str) -> uuid.UUID:
    """Parse the token of an operation's preview as a UUID; raises Absent otherwise."""
    token = uuid_of(text)
    if token is None:
        raise Absent("This is no preview's token.")
    return token


def _target_topics(principal: Principal) -> list[str]:
    """List the names of visible topics with a broker, as targets of a redrive."""
    names = Topic.objects.exclude(broker=None).values_list("name", flat=True)
    return [name for name in names.order_by("name") if principal.sees(name)]


def selection_of_problems(
    verb: Verb, *, query: Query, problems: tuple[int, ...]
) -> SelectionRequest:
    """Build a selection of these problems' messages that match the list's query."""
    numbers = ",".join(str(number) for number in problems)
    return SelectionRequest(
        verb=verb, query=Query((*query.terms, Term("problem", numbers)))
    )
