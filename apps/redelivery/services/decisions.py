"""What people decide about deliveries: try now, give up, restore.

Each call is one decision on the audit trail, whatever the number of its deliveries.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.errors import Invalid
from apps.redelivery.due_notices import notify_due
from apps.redelivery.models import Delivery
from apps.redelivery.services import call_counts, ends
from apps.redelivery.states import DeliveryState
from apps.team.rights import Principal, Scope
from poisonguard.contract import Cause

MOST_AT_ONCE = 1_000


@transaction.atomic
def retry_now(
    *,
    ids: Collection[uuid.UUID],
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> int:
    """Make waiting deliveries due now; return how many. Their plan stays the same."""

    def hurry(delivery: Delivery) -> None:
        delivery.due_at = now
        delivery.save(update_fields=["due_at"])

    return _decide(
        hurry,
        Action.DELIVERIES_RETRIED,
        ids=ids,
        state=DeliveryState.WAITING,
        principal=principal,
        reason=reason,
        now=now,
    )


@transaction.atomic
def give_up(
    *,
    ids: Collection[uuid.UUID],
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> int:
    """End waiting deliveries as their endpoint says; return how many."""
    ends_at = Counter[int]()

    def end(delivery: Delivery) -> None:
        ends.end(delivery, delivery.endpoint, cause=Cause.MANUAL, now=now)
        delivery.save()
        ends_at[delivery.endpoint_id] += 1

    ended = _decide(
        end,
        Action.DELIVERIES_GIVEN_UP,
        ids=ids,
        state=DeliveryState.WAITING,
        principal=principal,
        reason=reason,
        now=now,
    )
    # At the end, and in order: calls that end at these endpoints wait for these rows.
    for endpoint_id, number in sorted(ends_at.items()):
        call_counts.add(
            endpoint_id=endpoint_id,
            counts={call_counts.GIVEN_UP: number},
            now=now,
        )
    return ended


@transaction.atomic
def restore(
    *,
    ids: Collection[uuid.UUID],
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> int:
    """Let dropped deliveries begin their plan from its start; return how many."""

    def begin_again(delivery: Delivery) -> None:
        expiry = delivery.endpoint.expiry
        delivery.state = DeliveryState.WAITING.value
        delivery.retry_count = 0
        delivery.due_at = now
        delivery.expires_at = (
            None if expiry is None else now + timedelta(seconds=expiry)
        )
        delivery.finished_at = None
        delivery.cause = ""
        delivery.save()

    return _decide(
        begin_again,
        Action.DELIVERIES_RESTORED,
        ids=ids,
        state=DeliveryState.DROPPED,
        principal=principal,
        reason=reason,
        now=now,
    )


def _decide(
    act: Callable[[Delivery], None],
    action: Action,
    *,
    ids: Collection[uuid.UUID],
    state: DeliveryState,
    principal: Principal,
    reason: str,
    now: datetime,
) -> int:
    """Act on those of these deliveries that are in a state and visible."""
    principal.require(Scope.OPERATIONS_WRITE)
    if not 0 < len(ids) <= MOST_AT_ONCE:
        raise Invalid("ids", f"give 1 to {MOST_AT_ONCE:,} ids of deliveries")
    deliveries = list(
        Delivery.objects.on_endpoints(principal.topics)
        .filter(pk__in=ids, state=state)
        .select_related("endpoint", "endpoint__topic", "endpoint__forward_endpoint")
        .select_for_update(of=("self",))
        .order_by("pk")
    )
    for delivery in deliveries:
        act(delivery)
    if deliveries:
        for endpoint_id in {delivery.endpoint_id for delivery in deliveries}:
            notify_due(endpoint_id=endpoint_id)
        _record(action, deliveries, principal, reason=reason, now=now)
    return len(deliveries)


def _record(
    action: Action,
    deliveries: list[Delivery],
    principal: Principal,
    *,
    reason: str,
    now: datetime,
) -> None:
    """Record a decision about a delivery, or about several of them."""
    ids = [str(delivery.pk) for delivery in deliveries]
    audit.record(
        action=action,
        subject=f"delivery:{ids[0]}" if len(ids) == 1 else "deliveries",
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
        detail={
            "deliveries": ids,
            "endpoints": sorted({delivery.endpoint.name for delivery in deliveries}),
        },
    )
