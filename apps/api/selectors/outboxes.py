"""Read outboxes with what their sweepers note, and their rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from apps.api.keyset_pagination import Page, PageWindow
from apps.brokers import sealed_addresses
from apps.core.errors import Absent
from apps.outbox.models import Outbox, OutboxActivity, OutboxError
from apps.outbox.outbox_settings_dataclass import OutboxSettings
from apps.outbox.querysets import OutboxQuerySet
from apps.outbox.sweeper_state_for_pages import state_of
from apps.team.rights import Principal

MOST_ERRORS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxDetail:
    """An outbox with its state and its latest errors."""

    outbox: Outbox
    settings: OutboxSettings
    activity: OutboxActivity
    state: str
    errors: list[OutboxError]

    @property
    def address(self) -> str:
        """Say where an outbox's database address is stored, without any part of it."""
        return sealed_addresses.storage_of(self.outbox.url)


def find(
    window: PageWindow, principal: Principal, *, now: datetime
) -> tuple[Page[Outbox], list[OutboxDetail]]:
    """List a page of the outboxes that a principal sees."""
    page = window.page(_visible(principal).order_by("pk"))
    return page, [_detail(outbox, now=now) for outbox in page.rows]


def one(outbox_id: int, principal: Principal, *, now: datetime) -> OutboxDetail:
    """Return an outbox with state and errors; raises Absent if it is not visible."""
    return _detail(visible(outbox_id, principal), now=now)


def visible(outbox_id: int, principal: Principal) -> Outbox:
    """Return the Outbox of this id for the API; raise Absent if it is not visible."""
    outbox = _visible(principal).filter(pk=outbox_id).first()
    if outbox is None:
        raise Absent(f"There is no outbox {outbox_id} here.")
    return outbox


def _visible(principal: Principal) -> OutboxQuerySet:
    outboxes = Outbox.objects.matching(principal.topics)
    related = outboxes.select_related("topic", "broker", "activity")
    return related.prefetch_related("errors")


def _detail(outbox: Outbox, *, now: datetime) -> OutboxDetail:
    errors = sorted(outbox.errors.all(), key=lambda each: each.last_at, reverse=True)
    return OutboxDetail(
        outbox=outbox,
        settings=OutboxSettings.of(outbox),
        activity=outbox.activity,
        state=state_of(outbox, now=now),
        errors=errors[:MOST_ERRORS],
    )
