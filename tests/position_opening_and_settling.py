"""Open and settle positions, as a consumer does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from apps.bookmarks.consumer_request_parsing import Holder
from apps.bookmarks.services import position_settling
from apps.bookmarks.services.position_opening import OpenedPositions, open_positions
from apps.bookmarks.services.position_settling import SettleAnswer, SettleStatus
from apps.brokers.adapter_contract import ConsumerPosition
from apps.core.actor import Actor
from apps.team.rights import Principal, Scope

CONSUMER = Principal(
    actor=Actor.key("billing"), scopes=frozenset({Scope.POSITIONS_WRITE})
)


def told_by_broker(consumer_group: str = "billing", **changes: Any) -> ConsumerPosition:
    """Return a consumer group as its broker reports it: two messages are left."""
    facts = {
        "consumer_group": consumer_group,
        "clients": 2,
        "bookmark": "17-0",
        "seq": 17,
        "head_bookmark": "19-0",
        "head_seq": 19,
        "lag": 2,
        "pending": 1,
        "oldest_pending_seconds": 3.0,
    }
    return ConsumerPosition(**{**facts, **changes})


def opened(
    now: datetime, /, principal: Principal = CONSUMER, **changes: Any
) -> OpenedPositions:
    data = {"client_name": "billing-1", "sub_id": "1", "topic": "orders", **changes}
    return open_positions(holder=Holder.parse(data), principal=principal, now=now)


def update(epoch: int, *settled: tuple[int, int], **changes: object) -> dict[str, Any]:
    return {
        "client_name": "billing-1",
        "sub_id": "1",
        "topic": "orders",
        "publisher": "",
        "epoch": epoch,
        "settled": [list(run) for run in settled],
        **changes,
    }


def settle(now: datetime, *members: object) -> list[SettleAnswer]:
    return position_settling.settle(members=members, principal=CONSUMER, now=now)


def statuses(answers: Sequence[SettleAnswer]) -> list[SettleStatus]:
    return [answer.status for answer in answers]
