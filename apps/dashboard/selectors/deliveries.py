"""The data of the delivery pages."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from apps.audit.models import Entry
from apps.core.statement_timeouts import TooSlow
from apps.dashboard.keyset_pagination import (
    BoundedCount,
    ListCursor,
    ListPage,
    bounded_count,
    page,
)
from apps.dashboard.presentation.attempt_time_line import TimeLine
from apps.dashboard.presentation.message_body import BodyView, view
from apps.dashboard.selectors import endpoints
from apps.dashboard.selectors.messages import (
    HeaderRows,
    revealed_value,
    unrevealed_value,
)
from apps.poison.message_contents import FirstHeaders
from apps.redelivery.delivery_filters import DeliveryFilter, delivery_list_timeout
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.models import Attempt, Delivery
from apps.redelivery.services import delivery_content_access
from apps.redelivery.services.delivery_content_access import RevealedDelivery
from apps.team.rights import Principal
from apps.triage.operation_states import Verb

MOST_SHOWN = 20
# The states in which each decision acts on a delivery.
ACTS_ON = {
    "retry": DeliveryState.WAITING,
    "give_up": DeliveryState.WAITING,
    "restore": DeliveryState.DROPPED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryList:
    page: ListPage[Delivery]
    total: BoundedCount | TooSlow
    endpoints: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRow:
    """An attempt; its answers are None until they are revealed."""

    attempt: Attempt
    answer: BodyView | None = None
    headers: HeaderRows | None = None
    late_answer: BodyView | None = None

    @property
    def seconds(self) -> float | None:
        """Return how long the attempt took, in seconds; None while under way."""
        ended_at = self.attempt.ended_at
        if ended_at is None:
            return None
        return (ended_at - self.attempt.begun_at) / timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryPage:
    """A delivery; `body` is None until it is revealed, with all answers."""

    delivery: Delivery
    headers: HeaderRows
    attempts: list[AttemptRow]
    time_line: TimeLine
    entries: list[Entry] | TooSlow
    body: BodyView | None = None
    content_type: str | None = None

    @property
    def path(self) -> bytes:
        return bytes(self.delivery.path)

    @property
    def decisions(self) -> list[str]:
        """List the decisions that the delivery's state allows."""
        return [act for act, state in ACTS_ON.items() if state == self.delivery.state]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionPreview:
    """What a decision would act on, and what it would leave, by state."""

    ids: list[uuid.UUID]
    first: list[Delivery]
    endpoints: list[tuple[str, int]]
    others: list[tuple[str, int]]
    unseen: int


def find(
    filters: DeliveryFilter, cursor: ListCursor | None, principal: Principal
) -> DeliveryList:
    """List a page of the deliveries that match the filter and are visible."""
    rows = filters.matching(principal)
    with delivery_list_timeout():
        listed = page(rows.select_related("endpoint"), cursor=cursor)
    return DeliveryList(
        page=listed, total=bounded_count(rows), endpoints=endpoints.names(principal)
    )


def verbs_for_all(
    params: Mapping[str, str], listed: DeliveryList | None
) -> list[tuple[str, str]]:
    """Return the decisions on all listed deliveries, with button labels.

    Where no state is chosen, they are about the waiting deliveries, whose number is not
    known yet. Returns [] if no delivery is listed.
    """
    if listed is None or not listed.page.rows:
        return []
    state, total = params.get("state", ""), listed.total
    number = "all" if isinstance(total, TooSlow) else str(total)
    waiting = number if state else "all that wait"
    if state == DeliveryState.DROPPED:
        return [(Verb.RESTORE.value, f"Restore {number}…")]
    if state in {"", DeliveryState.WAITING}:
        return [
            (Verb.TRY_NOW.value, f"Try {waiting} now…"),
            (Verb.GIVE_UP.value, f"Give up on {waiting}…"),
        ]
    return []


def one(delivery_id: uuid.UUID, principal: Principal) -> DeliveryPage:
    """Load a delivery without its contents; raises Absent if it is not visible."""
    delivery = delivery_content_access.visible(
        delivery_id=delivery_id, principal=principal
    )
    attempts = delivery_content_access.attempts(delivery)
    return DeliveryPage(
        delivery=delivery,
        headers=HeaderRows.of(_first_headers(delivery), unrevealed_value),
        attempts=[AttemptRow(attempt=attempt) for attempt in attempts],
        time_line=TimeLine.of(attempts),
        entries=delivery_content_access.entries(delivery),
    )


def page_of_revealed(revealed: RevealedDelivery) -> DeliveryPage:
    """Build the page of a delivery whose contents and answers were revealed."""
    delivery, headers = revealed.delivery, _first_headers(revealed.delivery)
    kinds = (value for name, value in headers.pairs if name.lower() == b"content-type")
    return DeliveryPage(
        delivery=delivery,
        headers=HeaderRows.of(headers, revealed_value),
        attempts=[_with_answer(attempt) for attempt in revealed.attempts],
        time_line=TimeLine.of(revealed.attempts),
        entries=delivery_content_access.entries(delivery),
        body=view(revealed.content, size=delivery.size),
        content_type=next((kind.decode("latin-1") for kind in kinds), None),
    )


def preview(
    act: str, ids: Collection[uuid.UUID], principal: Principal
) -> DecisionPreview:
    """Load the deliveries of these ids that a decision would act on.

    Others are counted by state, and those that the principal does not see in `unseen`.
    """
    rows = Delivery.objects.on_endpoints(principal.topics).filter(pk__in=ids)
    deliveries = list(rows.select_related("endpoint").recent_first())
    acted_on = [each for each in deliveries if each.state == ACTS_ON[act]]
    others = Counter(each.state for each in deliveries if each.state != ACTS_ON[act])
    return DecisionPreview(
        ids=[each.pk for each in acted_on],
        first=acted_on[:MOST_SHOWN],
        endpoints=sorted(Counter(each.endpoint.name for each in acted_on).items()),
        others=sorted(others.items()),
        unseen=len(set(ids)) - len(deliveries),
    )


def _with_answer(attempt: Attempt) -> AttemptRow:
    """Build the row of a delivery's attempt with the endpoint's revealed answers."""
    return AttemptRow(
        attempt=attempt,
        answer=_answer(attempt.answer, is_cut=attempt.is_answer_cut),
        headers=HeaderRows.of(_header_pairs(attempt.answer_headers), revealed_value),
        late_answer=(
            None
            if attempt.late_answer is None
            else _answer(attempt.late_answer, is_cut=False)
        ),
    )


def _answer(stored: bytes | memoryview, *, is_cut: bool) -> BodyView:
    """Render the start of an endpoint's answer, which may be longer."""
    content = bytes(stored)
    head = content[: delivery_content_access.SHOWN_BYTES_OF_ANSWER]
    return view(head, size=len(content) + is_cut)


def _first_headers(delivery: Delivery) -> FirstHeaders:
    return _header_pairs(delivery.headers)


def _header_pairs(flat: Sequence[bytes | memoryview]) -> FirstHeaders:
    """Pair the names and values of the first headers of a delivery to an endpoint.

    They alternate where they are stored. Those of an endpoint's answer, too.
    """
    parts = [bytes(part) for part in flat[: 2 * delivery_content_access.SHOWN_HEADERS]]
    return FirstHeaders(
        pairs=tuple(zip(parts[::2], parts[1::2], strict=True)), total=len(flat) // 2
    )
