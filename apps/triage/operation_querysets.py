"""Querysets of operations and their items."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db import models
from django.db.models import Exists, F, OuterRef, Q, Subquery, Sum

from apps.poison.models import ItemWindow
from apps.team.rights import Principal
from apps.triage.operation_states import (
    ACTIVE,
    CONFIRMED,
    LAYOUTS,
    UNFINISHED,
    OperationGroup,
    OperationState,
    before,
)

if TYPE_CHECKING:
    from apps.triage.models import Acknowledgement, Item, Operation


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

    def needing_a_person(self) -> Self:
        """Keep operations that are paused, wait for a broker, or have trouble.

        That is, messages that were refused, came back or are unknown: more of them than
        a person has acknowledged.
        """
        windows = ItemWindow.objects.filter(operation=OuterRef("pk"))
        troubled = Q(refused__gt=0) | Q(recurred__gt=0) | Q(unknown__gt=0)
        waits = Q(state__in=UNFINISHED) & ~Q(trouble="")
        return self.filter(
            Q(state=OperationState.PAUSED)
            | waits
            | Exists(windows.filter(troubled)) & ~Exists(_covering_acknowledgements())
        )

    def in_group(self, group: OperationGroup | None) -> Self:
        """Keep operations of a group, those of None are all."""
        if group is OperationGroup.NEEDS_YOU:
            return self.needing_a_person()
        if group is OperationGroup.RUNNING:
            return self.unfinished()
        return self if group is None else self.exclude(state__in=UNFINISHED)

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


def _covering_acknowledgements() -> models.QuerySet[Acknowledgement]:
    """Select a person's acknowledgement of all messages of an operation in trouble."""
    windows = ItemWindow.objects.filter(operation=OuterRef("operation"))
    of_operation = windows.values("operation")
    acknowledgements = apps.get_model("triage", "Acknowledgement").objects
    return acknowledgements.filter(
        operation=OuterRef("pk"),
        refused__gte=Subquery(of_operation.values(total=Sum("refused"))),
        recurred__gte=Subquery(of_operation.values(total=Sum("recurred"))),
        unknown__gte=Subquery(of_operation.values(total=Sum("unknown"))),
    )


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
