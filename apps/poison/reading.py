"""Reading what a message holds: a right of its own, and an entry on the trail."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F, Func, IntegerField, QuerySet
from django.db.models.functions import Left, Length

from apps.audit import services as audit
from apps.audit.models import Entry
from apps.audit.services import Action
from apps.brokers.ports import Header
from apps.core.errors import Absent
from apps.poison.models import Body, Failure, Poison
from apps.team.rights import Principal, Scope

SHOWN_BYTES = 64 * 1024
CHUNK = 1024 * 1024
# One guard may send a traceback of megabytes; twenty of them are no page.
SHOWN_CHARACTERS = 16 * 1024
# A message has a handful; of one that is hostile, a page shows the first.
SHOWN_HEADERS = 200
# A list that stays open and refreshes itself is one reading, not thousands.
ONE_READING = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstHeaders:
    """The headers of a message that a page has room for; `total` counts all."""

    pairs: tuple[Header, ...]
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Revealed:
    """The start of a message: `content` is at most `limit` of `size`."""

    poison: Poison
    content: bytes
    size: int
    headers: FirstHeaders
    content_type: str | None

    @property
    def truncated(self) -> bool:
        return len(self.content) < self.size


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureSeen:
    """A failure with its texts as far as they are shown; `cut` says if not whole."""

    failure: Failure
    message: str
    traceback: str
    cut: bool


def failures(rows: QuerySet[Failure], *, limit: int) -> list[FailureSeen]:
    """Read the newest of these failures, without the far end of their texts."""
    told = rows.defer("error_message", "traceback").annotate(
        message_shown=Left("error_message", SHOWN_CHARACTERS),
        traceback_shown=Left("traceback", SHOWN_CHARACTERS),
        longer=Length("error_message")
        + Length("traceback")
        - Length("message_shown")
        - Length("traceback_shown"),
    )
    return [
        FailureSeen(
            failure=row,
            message=row.message_shown,
            traceback=row.traceback_shown,
            cut=row.longer > 0,
        )
        for row in told.order_by("-failed_at", "-id")[:limit]
    ]


def visible(*, poison_id: int, principal: Principal) -> Poison:
    """Find a poison that this principal may see; raises Absent otherwise."""
    allowed = Poison.objects.on_topics(principal.topics)
    poison = allowed.select_related("topic", "problem").filter(pk=poison_id).first()
    if poison is None:
        raise Absent(f"There is no message {poison_id} here.")
    return poison


def header_names(*, poison_id: int) -> list[bytes]:
    return [name for name, _ in headers(poison_id=poison_id)]


def headers(*, poison_id: int) -> tuple[Header, ...]:
    """Read all headers of a message; show values only as `reveal` or as public."""
    return _pairs(Body.objects.values_list("headers", flat=True).get(poison=poison_id))


def first_headers(*, poison_id: int) -> FirstHeaders:
    """Read those that a page shows; show values only as `reveal` or as public."""
    first, parts = (
        Body.objects.annotate(
            first=F("headers")[: 2 * SHOWN_HEADERS],
            parts=Func(
                F("headers"), function="cardinality", output_field=IntegerField()
            ),
        )
        .values_list("first", "parts")
        .get(poison=poison_id)
    )
    return FirstHeaders(pairs=_pairs(first), total=parts // 2)


def headers_of(poisons: Collection[Poison]) -> dict[int, tuple[Header, ...]]:
    """Read the headers of many messages, but for those of unusual size."""
    if not poisons:
        return {}
    bodies = Body.objects.with_usual_headers().filter(
        poison__in=[poison.pk for poison in poisons],
        # No body lies in a partition older than its capture: those are not looked at.
        day__gte=min(poison.captured_at for poison in poisons).date(),
    )
    return {pk: _pairs(flat) for pk, flat in bodies.values_list("poison_id", "headers")}


def is_header_revealed(
    *, problem_id: int, name: str, principal: Principal, now: datetime
) -> bool:
    """Tell whether this person had a header of a problem's messages shown of late."""
    return Entry.objects.filter(
        subject=f"problem:{problem_id}",
        actor=str(principal.actor),
        action=Action.BODY_REVEALED,
        at__gt=now - ONE_READING,
        detail__header=name,
    ).exists()


@transaction.atomic
def reveal_header(
    *, problem_id: int, name: str, principal: Principal, now: datetime
) -> None:
    """Put on record that a header is shown of each listed message of a problem."""
    principal.require(Scope.BODIES_READ)
    audit.record(
        action=Action.BODY_REVEALED,
        subject=f"problem:{problem_id}",
        actor=principal.actor,
        source=principal.source,
        now=now,
        detail={"how": "header in a list", "header": name},
    )


@transaction.atomic
def reveal(
    *, poison_id: int, principal: Principal, now: datetime, limit: int = SHOWN_BYTES
) -> Revealed:
    """Show the start of a body and the headers; puts on record that it was shown."""
    poison = visible(poison_id=poison_id, principal=principal)
    principal.require(Scope.BODIES_READ)
    content_type = Body.objects.values_list("content_type", flat=True).get(
        poison=poison
    )
    revealed = Revealed(
        poison=poison,
        content=_slice(poison_id, start=0, length=limit),
        size=poison.size,
        headers=first_headers(poison_id=poison_id),
        content_type=content_type,
    )
    _record(poison, principal, now=now, how="shown")
    return revealed


def download(
    *, poison_id: int, principal: Principal, now: datetime
) -> tuple[Poison, Iterator[bytes]]:
    """Give the exact bytes, chunk by chunk; puts on record that they were taken."""
    poison = visible(poison_id=poison_id, principal=principal)
    principal.require(Scope.BODIES_READ)
    with transaction.atomic():
        _record(poison, principal, now=now, how="downloaded")
    return poison, _chunks(poison)


def _record(poison: Poison, principal: Principal, *, now: datetime, how: str) -> None:
    audit.record(
        action=Action.BODY_REVEALED,
        subject=f"poison:{poison.pk}",
        actor=principal.actor,
        source=principal.source,
        now=now,
        detail={"how": how, "topic": poison.topic.name, "bytes": poison.size},
    )


def _chunks(poison: Poison) -> Iterator[bytes]:
    for start in range(0, poison.size, CHUNK):
        yield _slice(poison.pk, start=start, length=CHUNK)


def _slice(poison_id: int, *, start: int, length: int) -> bytes:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT substring(content FROM %s FOR %s) FROM poison_body"
            " WHERE poison_id = %s",
            [start + 1, length, poison_id],
        )
        return bytes(cursor.fetchone()[0])


def _pairs(flat: Sequence[bytes | memoryview]) -> tuple[Header, ...]:
    parts = [bytes(part) for part in flat]
    return tuple(zip(parts[::2], parts[1::2], strict=True))
