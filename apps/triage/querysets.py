"""Querysets of operations and their items."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models import Count, Q
from django.db.models.functions import Coalesce

from apps.poison.states import IN_FLIGHT, RedriveOutcome, silent_before
from apps.team.rights import Principal
from apps.triage.states import (
    CONFIRMED,
    COUNTED,
    UNFINISHED,
    ItemState,
    OperationState,
    before,
)

if TYPE_CHECKING:
    from apps.triage.models import Item, Operation


class OperationQuerySet(models.QuerySet["Operation"]):
    def visible_to(self, principal: Principal) -> Self:
        """Keep the confirmed operations that this principal may see.

        A key for some topics sees those that were confirmed under its own patterns, or
        under fewer of them; no operation over topics that it does not see.
        """
        if principal.sees_every_topic:
            return self.confirmed()
        return self.confirmed().filter(topics__contained_by=list(principal.topics))

    def confirmed(self) -> Self:
        """Keep confirmed operations; previews are not shown as operations."""
        return self.filter(state__in=CONFIRMED)

    def previews(self) -> Self:
        """Keep operations that are still previews, also the expired ones."""
        return self.filter(state=OperationState.PREVIEW)

    def unfinished(self) -> Self:
        """Keep confirmed operations that still have work."""
        return self.filter(state__in=UNFINISHED)

    def due(self, now: datetime) -> Self:
        """Keep operations that need not wait before the next try."""
        return self.filter(Q(retry_at=None) | Q(retry_at__lte=now))

    def stale(self, now: datetime) -> Self:
        """Keep previews that ended unconfirmed: expired, or cancelled (see NEXT)."""
        return self.filter(
            Q(state=OperationState.PREVIEW, expires_at__lte=now)
            | Q(state=OperationState.CANCELLED)
        )

    def recent_first(self) -> Self:
        """Order by id, the newest operation first."""
        return self.order_by("-id")

    def transition(self, *, to: OperationState, **values: Any) -> int:
        """Change the state of rows that may reach it; return how many did."""
        return self.filter(state__in=before(to)).update(state=to.value, **values)


class ItemQuerySet(models.QuerySet["Item"]):
    def waiting(self) -> Self:
        """Keep items that are neither claimed nor decided."""
        return self.filter(state=ItemState.WAITING)

    def in_flight(self) -> Self:
        """Keep items whose message was sent, and not answered yet."""
        return self.filter(redrive__outcome__in=IN_FLIGHT)

    def unfinished(self) -> Self:
        """Keep items that wait, or whose message is in flight."""
        return self.filter(
            Q(state=ItemState.WAITING) | Q(redrive__outcome__in=IN_FLIGHT)
        )

    def standing(self, name: str) -> Self:
        """Keep items by standing: their own state, or their redrive's outcome."""
        return self.filter(Q(state=name) | Q(redrive__outcome=name))

    def silent(self, now: datetime) -> Self:
        """Keep items that were sent, and of which no answer came for too long."""
        return self.filter(
            redrive__outcome=RedriveOutcome.SENT,
            redrive__sent_at__lt=silent_before(now),
        )

    def counts(self) -> dict[str, int]:
        """Count items by standing: every standing is a key, the sum is the total."""
        unclaimed = self.exclude(state=ItemState.CLAIMED).order_by()
        claimed = self.filter(state=ItemState.CLAIMED).order_by()
        counts = {
            **dict(unclaimed.values_list("state").annotate(number=Count("pk"))),
            **dict(
                claimed.values_list("redrive__outcome").annotate(number=Count("pk"))
            ),
        }
        return {name: counts.get(name, 0) for name in COUNTED}

    def counts_of(self, operations: Iterable[int]) -> dict[int, dict[str, int]]:
        """Count the items of each operation by standing, in one query."""
        counts = {pk: dict.fromkeys(COUNTED, 0) for pk in operations}
        # Only a claimed item has a redrive; the outcome of the redrive is its standing.
        standing = Coalesce("redrive__outcome", "state")
        items = self.filter(operation__in=counts).order_by().annotate(standing=standing)
        rows = items.values_list("operation", "standing").annotate(number=Count("pk"))
        for operation, name, number in rows:
            counts[operation][name] = number
        return counts
