"""Querysets of operations and their items."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db import models
from django.db.models import Exists, F, OuterRef, Q

from apps.team.rights import Principal
from apps.triage.operation_states import (
    ACTIVE,
    CONFIRMED,
    LAYOUTS,
    UNFINISHED,
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
        """Keep confirmed operations that have not ended, also the paused ones."""
        return self.filter(state__in=UNFINISHED)

    def active(self) -> Self:
        """Keep operations that a worker has to work on."""
        return self.filter(state__in=ACTIVE)

    def of_this_release(self) -> Self:
        """Keep operations whose items lie where this release looks for them."""
        return self.filter(layout__in=LAYOUTS)

    def due(self, now: datetime) -> Self:
        """Keep operations that need not wait before the next try."""
        return self.filter(Q(retry_at=None) | Q(retry_at__lte=now))

    def stale(self, now: datetime) -> Self:
        """Keep previews of operations that expired unconfirmed."""
        return self.filter(state=OperationState.PREVIEW, expires_at__lte=now)

    def recent_first(self) -> Self:
        """Order by id, the newest operation first."""
        return self.order_by("-id")

    def transition(self, *, to: OperationState, **values: Any) -> int:
        """Change the state of operations that may reach it; return how many did."""
        return self.filter(state__in=before(to)).update(state=to.value, **values)


class ItemQuerySet(models.QuerySet["Item"]):
    def not_skipped(self) -> Self:
        """Keep items on which the operation acts, or will act."""
        skipped = apps.get_model("triage", "SkippedItem").objects.filter(
            operation=OuterRef("operation"), number=OuterRef("number")
        )
        return self.filter(~Exists(skipped))

    def acted_on(self, operation: int) -> Self:
        """Keep the items that an operation has dropped or restored so far."""
        judged = self.filter(operation=operation, number__lt=F("operation__judged"))
        return judged.not_skipped()
