"""What people decide about deliveries: try now, give up, restore.

Each call is one decision on the audit trail, whatever the number of its deliveries. For
more than those of a page there are operations: see `delivery_items`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from django.db import transaction
from django.db.models import Exists, OuterRef

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.errors import Invalid
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.models import Delivery, DeliveryHold, Endpoint
from apps.redelivery.services.delivery_state_changes import LockedDeliveries
from apps.team.rights import Principal, Scope

MOST_AT_ONCE = 1_000
WHY_GIVEN_UP = "say why they are given up"


@transaction.atomic
def retry_now(
    *,
    ids: Collection[uuid.UUID],
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> int:
    """Make waiting deliveries due now; return how many. Their plan stays the same."""
    return _decide(
        LockedDeliveries.make_due,
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
    reason: str,
    now: datetime,
) -> int:
    """Give up waiting deliveries: end them as their endpoints say; return how many.

    Raises Invalid without a reason.
    """
    if not reason.strip():
        raise Invalid("reason", WHY_GIVEN_UP)
    return _decide(
        LockedDeliveries.give_up,
        Action.DELIVERIES_GIVEN_UP,
        ids=ids,
        state=DeliveryState.WAITING,
        principal=principal,
        reason=reason,
        now=now,
    )


@transaction.atomic
def restore(
    *,
    ids: Collection[uuid.UUID],
    principal: Principal,
    reason: str = "",
    now: datetime,
) -> int:
    """Let dropped deliveries begin their plan from its start; return how many."""
    return _decide(
        LockedDeliveries.begin_again,
        Action.DELIVERIES_RESTORED,
        ids=ids,
        state=DeliveryState.DROPPED,
        principal=principal,
        reason=reason,
        now=now,
    )


class _Decision(Protocol):
    def __call__(self, deliveries: LockedDeliveries, /, *, now: datetime) -> None: ...


def _decide(
    act: _Decision,
    action: Action,
    *,
    ids: Collection[uuid.UUID],
    state: DeliveryState,
    principal: Principal,
    reason: str,
    now: datetime,
) -> int:
    """Lock deliveries, and act on those that are visible, in a state, on no hold.

    Returns how many those were.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    if not 0 < len(ids) <= MOST_AT_ONCE:
        raise Invalid("ids", f"give 1 to {MOST_AT_ONCE:,} ids of deliveries")
    free = Delivery.objects.on_endpoints(principal.topics).filter(
        ~Exists(DeliveryHold.objects.filter(delivery=OuterRef("pk"))),
        pk__in=ids,
        state=state,
    )
    locked = LockedDeliveries(list(free.values_list("pk", flat=True)))
    act(locked, now=now)
    acted_on = sorted(pk for pk, each in locked.states.items() if each == state)
    if acted_on:
        _record(action, acted_on, principal, reason=reason, now=now)
    locked.count_given_up(now=now)
    return len(acted_on)


def _record(
    action: Action,
    deliveries: Sequence[uuid.UUID],
    principal: Principal,
    *,
    reason: str,
    now: datetime,
) -> None:
    """Append a decision about one or several deliveries to the audit."""
    ids = [str(pk) for pk in deliveries]
    endpoints = Endpoint.objects.filter(deliveries__in=deliveries)
    audit.record(
        action=action,
        subject=f"delivery:{ids[0]}" if len(ids) == 1 else "deliveries",
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
        detail={
            "deliveries": ids,
            "endpoints": sorted(set(endpoints.values_list("name", flat=True))),
        },
    )
