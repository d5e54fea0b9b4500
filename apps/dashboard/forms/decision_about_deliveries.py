"""The form of one decision about many deliveries: retry now, give up, restore."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, Self

from django.http import QueryDict

from apps.core.errors import Invalid
from apps.dashboard.forms.fields import reason_in
from apps.redelivery.services import delivery_decisions
from apps.team.rights import Principal
from poisonguard.contract import uuid_of


class _Decide(Protocol):
    def __call__(
        self,
        *,
        ids: set[uuid.UUID],
        principal: Principal,
        reason: str,
        now: datetime,
    ) -> int: ...


_DECISIONS: Final[Mapping[str, _Decide]] = {
    "retry": delivery_decisions.retry_now,
    "give_up": delivery_decisions.give_up,
    "restore": delivery_decisions.restore,
}
# How many deliveries a form of the list can have: one page of them.
MOST_IDS = delivery_decisions.MOST_AT_ONCE


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveriesDecisionForm:
    """What a person decides about which deliveries."""

    act: str
    ids: set[uuid.UUID]
    reason: str

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Parse a decision on deliveries; raises Invalid for a wrong verb or wrong ids.

        Ids are wrong if no valid one is chosen, or if there are more than MOST_IDS.
        """
        act = data.get("verb", "")
        if act not in _DECISIONS:
            raise Invalid("verb", f"choose one of {', '.join(_DECISIONS)}")
        texts = data.getlist("ids")
        ids = {pk for pk in map(uuid_of, texts[: MOST_IDS + 1]) if pk is not None}
        if not ids or len(texts) > MOST_IDS:
            raise Invalid("ids", f"choose 1 to {MOST_IDS:,} deliveries")
        return cls(act=act, ids=ids, reason=reason_in(data))

    def carry_out(self, principal: Principal, *, now: datetime) -> int:
        """Carry out the decision on deliveries; return how many deliveries it changed.

        Raises Invalid for giving up without a reason.
        """
        return _DECISIONS[self.act](
            ids=self.ids, principal=principal, reason=self.reason, now=now
        )
