"""Operations and items, asked for in sentences."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models import Count, Q

from apps.poison.states import IN_FLIGHT
from apps.triage.states import CONFIRMED, COUNTED, UNFINISHED, ItemState, State, before

if TYPE_CHECKING:
    from apps.triage.models import Item, Operation


class OperationQuerySet(models.QuerySet["Operation"]):
    def confirmed(self) -> Self:
        """Keep what somebody decided; a preview is no operation to the reader."""
        return self.filter(state__in=CONFIRMED)

    def previews(self) -> Self:
        return self.filter(state=State.PREVIEW)

    def unfinished(self) -> Self:
        return self.filter(state__in=UNFINISHED)

    def due(self, now: datetime) -> Self:
        return self.filter(Q(retry_at=None) | Q(retry_at__lte=now))

    def stale(self, now: datetime) -> Self:
        """Keep previews that ended unconfirmed: by age, or cancelled (see NEXT)."""
        return self.filter(
            Q(state=State.PREVIEW, expires_at__lte=now) | Q(state=State.CANCELLED)
        )

    def recent_first(self) -> Self:
        return self.order_by("-id")

    def transition(self, *, to: State, **values: Any) -> int:
        """Move what may move, and say how many rows did."""
        return self.filter(state__in=before(to)).update(state=to.value, **values)


class ItemQuerySet(models.QuerySet["Item"]):
    def waiting(self) -> Self:
        return self.filter(state=ItemState.WAITING)

    def in_flight(self) -> Self:
        return self.filter(redrive__outcome__in=IN_FLIGHT)

    def unfinished(self) -> Self:
        return self.filter(
            Q(state=ItemState.WAITING) | Q(redrive__outcome__in=IN_FLIGHT)
        )

    def standing(self, word: str) -> Self:
        """Keep the items that stand so: by their own state, or by their redrive's."""
        return self.filter(Q(state=word) | Q(redrive__outcome=word))

    def counts(self) -> dict[str, int]:
        """Count by standing; every standing is there, and they add up to the total."""
        own = self.exclude(state=ItemState.CLAIMED).order_by().values_list("state")
        sent = self.filter(state=ItemState.CLAIMED).order_by()
        found = {
            **dict(own.annotate(number=Count("pk"))),
            **dict(sent.values_list("redrive__outcome").annotate(number=Count("pk"))),
        }
        return {name: found.get(name, 0) for name in COUNTED}
