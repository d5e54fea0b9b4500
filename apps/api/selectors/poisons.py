"""Read poisons, one by one and as a list, without their bodies."""

from __future__ import annotations

from dataclasses import dataclass

from apps.api.keyset_pagination import Page, PageWindow
from apps.audit.models import Entry
from apps.core.statement_timeouts import search_timeout
from apps.core.text_cleaning import readable
from apps.poison import message_contents
from apps.poison.message_contents import FailureExcerpt
from apps.poison.models import Failure, Poison, Redrive
from apps.poison.query_language import Query
from apps.team.rights import Principal, Scope
from apps.triage.models import Item, Operation

MOST_FAILURES = 50
LONGEST_NAME = 1024
MOST_REDRIVES = 50
MOST_ENTRIES = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class PoisonDetail:
    """A poison and its history, newest first.

    `operations` are the confirmed ones that contain it. `entries` is None for a
    principal without `audit:read`.
    """

    poison: Poison
    header_names: list[str]
    failures: list[FailureExcerpt]
    redrives: list[Redrive]
    operations: list[Operation]
    entries: list[Entry] | None


def matching(query: Query, window: PageWindow, principal: Principal) -> Page[Poison]:
    """List the matching poisons that this principal may see, latest failure first."""
    rows = Poison.objects.on_topics(principal.topics).matching(query).recent_first()
    # A bookmark may have 100 KB; only the detail shows it.
    rows = rows.select_related("topic", "moved_to").defer("bookmark")
    with search_timeout():
        return window.page(rows)


def one(poison_id: int, principal: Principal) -> PoisonDetail:
    """Find a poison and its history; raises Absent if the principal sees none."""
    poison = message_contents.visible(poison_id=poison_id, principal=principal)
    headers = message_contents.first_headers(poison_id=poison_id)
    redrives = Redrive.objects.filter(poison=poison).select_related("topic")
    containing = _operations(poison, principal)
    return PoisonDetail(
        poison=poison,
        header_names=[readable(name[:LONGEST_NAME]) for name, _ in headers.pairs],
        failures=message_contents.failures(
            Failure.objects.filter(poison=poison), limit=MOST_FAILURES
        ),
        redrives=list(redrives.order_by("-n")[:MOST_REDRIVES]),
        operations=containing,
        entries=_entries(poison, containing, principal),
    )


def _operations(poison: Poison, principal: Principal) -> list[Operation]:
    """List the newest visible operations that include a poison."""
    ids = Item.objects.filter(poison=poison).values("operation")
    rows = Operation.objects.visible_to(principal).filter(pk__in=ids)
    rows = rows.select_related("target_topic", "acknowledgement")
    return list(rows.recent_first()[:MOST_ENTRIES])


def _entries(
    poison: Poison, containing: list[Operation], principal: Principal
) -> list[Entry] | None:
    """List for the API the audit entries of a poison and of its operations.

    None without the right.
    """
    if not principal.may(Scope.AUDIT_READ):
        return None
    subjects = [f"poison:{poison.pk}", *(f"operation:{op.pk}" for op in containing)]
    entries = Entry.objects.filter(subject__in=subjects)
    return list(entries.order_by("-seq")[:MOST_ENTRIES])
