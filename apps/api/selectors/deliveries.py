"""Read deliveries, one by one and as a list, without their bodies."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from apps.api.keyset_pagination import Page, PageWindow
from apps.audit.models import Entry
from apps.core.statement_timeouts import TooSlow
from apps.core.text_cleaning import readable
from apps.redelivery.delivery_filters import DeliveryFilter, delivery_list_timeout
from apps.redelivery.models import Attempt, Delivery
from apps.redelivery.services import delivery_content_access
from apps.team.rights import Principal, Scope

LONGEST_NAME = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryWithHistory:
    """A delivery and its history, newest first.

    `entries` is None for a principal without `audit:read`.
    """

    delivery: Delivery
    header_names: list[str]
    attempt_list: list[Attempt]
    entries: list[Entry] | None


def matching(
    filters: DeliveryFilter, window: PageWindow, principal: Principal
) -> Page[Delivery]:
    """List for the API a page of the matching deliveries that this principal may see.

    The latest come first.
    """
    with delivery_list_timeout():
        return window.page(filters.matching(principal).select_related("endpoint"))


def one(delivery_id: uuid.UUID, principal: Principal) -> DeliveryWithHistory:
    """Find a delivery and its history; raises Absent if the principal sees none."""
    delivery = delivery_content_access.visible(
        delivery_id=delivery_id, principal=principal
    )
    headers = delivery_content_access.first_headers(delivery)
    return DeliveryWithHistory(
        delivery=delivery,
        header_names=[readable(name[:LONGEST_NAME]) for name, _ in headers],
        attempt_list=delivery_content_access.attempts(delivery),
        entries=_entries(delivery, principal),
    )


def _entries(delivery: Delivery, principal: Principal) -> list[Entry] | None:
    if not principal.may(Scope.AUDIT_READ):
        return None
    entries = delivery_content_access.entries(delivery)
    return None if isinstance(entries, TooSlow) else entries
