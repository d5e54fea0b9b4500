"""Read what a delivery holds: it needs a right of its own, and is audited."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from django.db import connection, transaction
from django.db.models import Q, QuerySet

from apps.audit import services as audit
from apps.audit.models import Entry
from apps.audit.services import Action
from apps.brokers.adapter_contract import Header
from apps.brokers.topic_policies import ENDPOINT_TOPICS
from apps.core.errors import Absent
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.redelivery.models import Attempt, Delivery
from apps.redelivery.services.delivery_endings import headers_of
from apps.team.rights import Principal, Scope
from apps.triage.operation_states import ItemKindName
from apps.triage.services.message_audit_filter import operations_on
from poisonguard.contract import uuid_of

SHOWN_BYTES = 64 * 1024
SHOWN_BYTES_OF_ANSWER = 4 * 1024
SHOWN_HEADERS = 200
MOST_ATTEMPTS = 50
MOST_ENTRIES = 20
CHUNK = 1024 * 1024
# What only those with the right to bodies read of an attempt.
_SECRET = ("answer_headers", "answer", "late_answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class RevealedDelivery:
    """A delivery with the start of its body, and its attempts with their answers."""

    delivery: Delivery
    content: bytes
    headers: list[Header]
    attempts: list[Attempt]


def visible(*, delivery_id: uuid.UUID, principal: Principal) -> Delivery:
    """Return a delivery that this principal may see; raise Absent otherwise."""
    rows = Delivery.objects.on_endpoints(principal.topics)
    delivery = rows.select_related("endpoint__topic").filter(pk=delivery_id).first()
    if delivery is None:
        raise Absent(f"There is no delivery {delivery_id} here.")
    return delivery


def of_bookmarks(
    topic: str, bookmarks: Iterable[str], principal: Principal
) -> dict[str, uuid.UUID]:
    """Map those of a message's bookmarks that are a visible delivery's id to this id.

    Empty for a message of a topic that is no endpoint's.
    """
    if not topic.startswith(ENDPOINT_TOPICS):
        return {}
    ids = {bookmark: uuid_of(bookmark) for bookmark in bookmarks}
    rows = Delivery.objects.on_endpoints(principal.topics).filter(
        pk__in=[pk for pk in ids.values() if pk]
    )
    visible_ids = set(rows.values_list("pk", flat=True))
    return {bookmark: pk for bookmark, pk in ids.items() if pk and pk in visible_ids}


def first_headers(delivery: Delivery) -> list[Header]:
    """Return a delivery's first headers with all their values, none masked.

    Callers show only public values, until a person reveals them.
    """
    return list(islice(headers_of(delivery), SHOWN_HEADERS))


def attempts(delivery: Delivery) -> list[Attempt]:
    """Read the newest attempts of a delivery, without the back end's answers."""
    return list(_newest_attempts(delivery).defer(*_SECRET))


def entries(delivery: Delivery) -> list[Entry] | TooSlow:
    """Read the newest audit entries about a delivery, alone or among others."""
    operations = operations_on(
        delivery.pk, kind=ItemKindName.DELIVERY, limit=MOST_ENTRIES
    )
    about = (
        Q(subject=f"delivery:{delivery.pk}")
        | Q(subject="deliveries", detail__deliveries__contains=[str(delivery.pk)])
        | Q(subject__in=operations)
    )
    newest = Entry.objects.filter(about).order_by("-seq")[:MOST_ENTRIES]
    return unless_slow(lambda: list(newest))


@transaction.atomic
def reveal(
    *, delivery_id: uuid.UUID, principal: Principal, now: datetime
) -> RevealedDelivery:
    """Return a delivery with its contents; record that in the audit."""
    delivery = visible(delivery_id=delivery_id, principal=principal)
    principal.require(Scope.BODIES_READ)
    revealed = RevealedDelivery(
        delivery=delivery,
        content=_read_slice(delivery, start=0, length=SHOWN_BYTES),
        headers=first_headers(delivery),
        attempts=list(_newest_attempts(delivery)),
    )
    _audit_reading(delivery, principal, how="shown", now=now)
    return revealed


@transaction.atomic
def download(
    *, delivery_id: uuid.UUID, principal: Principal, now: datetime
) -> tuple[Delivery, Iterator[bytes]]:
    """Return a delivery's body as chunks of bytes; record that in the audit."""
    delivery = visible(delivery_id=delivery_id, principal=principal)
    principal.require(Scope.BODIES_READ)
    _audit_reading(delivery, principal, how="downloaded", now=now)
    return delivery, _read_chunks(delivery)


def _newest_attempts(delivery: Delivery) -> QuerySet[Attempt]:
    rows = Attempt.objects.filter(delivery=delivery)
    return rows.order_by("-number")[:MOST_ATTEMPTS]


def _audit_reading(
    delivery: Delivery, principal: Principal, *, how: str, now: datetime
) -> None:
    """Append to the audit that a delivery's contents were shown or downloaded."""
    audit.record(
        action=Action.BODY_REVEALED,
        subject=f"delivery:{delivery.pk}",
        actor=principal.actor,
        source=principal.source,
        now=now,
        detail={
            "how": how,
            "endpoint": delivery.endpoint.name,
            "bytes": delivery.size,
        },
    )


def _read_chunks(delivery: Delivery) -> Iterator[bytes]:
    """Read a body chunk by chunk, each by a query."""
    for start in range(0, delivery.size, CHUNK):
        yield _read_slice(delivery, start=start, length=CHUNK)


def _read_slice(delivery: Delivery, *, start: int, length: int) -> bytes:
    """Read a part of a delivery's body from Postgres."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT substring(content FROM %s FOR %s) FROM redelivery_delivery_body"
            " WHERE delivery_id = %s",
            [start + 1, length, delivery.pk],
        )
        return bytes(cursor.fetchone()[0])
