"""Read the contents of messages: it needs a right of its own, and is audited."""

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
from apps.brokers.adapter_contract import Header
from apps.core.errors import Absent
from apps.poison.models import Body, Failure, Poison
from apps.team.rights import Principal, Scope

SHOWN_BYTES = 64 * 1024
CHUNK = 1024 * 1024
# A guard may send tracebacks of megabytes; a page with twenty of them is too large.
SHOWN_CHARACTERS = 16 * 1024
# Usual messages have a few headers; of a hostile message, show only the first ones.
SHOWN_HEADERS = 200
# A list that stays open and refreshes itself is audited once, not thousands of times.
ONE_READING = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstHeaders:
    """The first headers of a message, for a page; `total` counts all."""

    pairs: tuple[Header, ...]
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RevealedMessage:
    """The start of a message: `content` is its first bytes, `size` its full size."""

    poison: Poison
    content: bytes
    size: int
    headers: FirstHeaders
    content_type: str | None

    @property
    def truncated(self) -> bool:
        return len(self.content) < self.size


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureExcerpt:
    """A failure with the start of its texts; `cut` says whether there is more."""

    failure: Failure
    message: str
    traceback: str
    cut: bool


def failures(rows: QuerySet[Failure], *, limit: int) -> list[FailureExcerpt]:
    """Read a message's newest failures, with the start of their texts."""
    excerpts = rows.defer("error_message", "traceback").annotate(
        message_shown=Left("error_message", SHOWN_CHARACTERS),
        traceback_shown=Left("traceback", SHOWN_CHARACTERS),
        longer=Length("error_message")
        + Length("traceback")
        - Length("message_shown")
        - Length("traceback_shown"),
    )
    return [
        FailureExcerpt(
            failure=row,
            message=row.message_shown,
            traceback=row.traceback_shown,
            cut=row.longer > 0,
        )
        for row in excerpts.order_by("-failed_at", "-id")[:limit]
    ]


def visible(*, poison_id: int, principal: Principal) -> Poison:
    """Return a poison that this principal may see; raise Absent otherwise."""
    allowed = Poison.objects.on_topics(principal.topics)
    poison = allowed.select_related("topic", "problem").filter(pk=poison_id).first()
    if poison is None:
        raise Absent(f"There is no message {poison_id} here.")
    return poison


def header_names(*, poison_id: int) -> list[bytes]:
    """Read the names of all headers of a stored message, in order."""
    return [name for name, _ in headers(poison_id=poison_id)]


def headers(*, poison_id: int) -> tuple[Header, ...]:
    """Return all headers of a message, with their values.

    Callers show only values that are public or revealed.
    """
    return _pairs(Body.objects.values_list("headers", flat=True).get(poison=poison_id))


def first_headers(*, poison_id: int) -> FirstHeaders:
    """Return a message's first headers, with their values, and the number of all.

    Callers show only values that are public or revealed.
    """
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
    """Read the headers of many messages; leave out those that are too large."""
    if not poisons:
        return {}
    bodies = Body.objects.with_usual_headers().filter(
        poison__in=[poison.pk for poison in poisons],
        # Lets Postgres skip older partitions: a body is stored when it is captured.
        day__gte=min(poison.captured_at for poison in poisons).date(),
    )
    return {pk: _pairs(flat) for pk, flat in bodies.values_list("poison_id", "headers")}


def is_header_revealed(
    *, problem_id: int, name: str, principal: Principal, now: datetime
) -> bool:
    """Tell whether this person revealed a header of a problem within the last hour."""
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
    """Record in the audit that a person reads a header of a problem's messages.

    The problem's page lists the header of all of them.
    """
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
) -> RevealedMessage:
    """Return the start of a message's body and its headers; audit the reveal."""
    poison = visible(poison_id=poison_id, principal=principal)
    principal.require(Scope.BODIES_READ)
    content_type = Body.objects.values_list("content_type", flat=True).get(
        poison=poison
    )
    revealed = RevealedMessage(
        poison=poison,
        content=_read_slice(poison_id, start=0, length=limit),
        size=poison.size,
        headers=first_headers(poison_id=poison_id),
        content_type=content_type,
    )
    _audit_reveal(poison, principal, now=now, how="shown")
    return revealed


def download(
    *, poison_id: int, principal: Principal, now: datetime
) -> tuple[Poison, Iterator[bytes]]:
    """Return a body's exact bytes, chunk by chunk; audit the download."""
    poison = visible(poison_id=poison_id, principal=principal)
    principal.require(Scope.BODIES_READ)
    with transaction.atomic():
        _audit_reveal(poison, principal, now=now, how="downloaded")
    return poison, _read_chunks(poison)


def _audit_reveal(
    poison: Poison, principal: Principal, *, now: datetime, how: str
) -> None:
    """Append to the audit that a message's body was shown or downloaded."""
    audit.record(
        action=Action.BODY_REVEALED,
        subject=f"poison:{poison.pk}",
        actor=principal.actor,
        source=principal.source,
        now=now,
        detail={"how": how, "topic": poison.topic.name, "bytes": poison.size},
    )


def _read_chunks(poison: Poison) -> Iterator[bytes]:
    """Read a message's body chunk by chunk, each by a query."""
    for start in range(0, poison.size, CHUNK):
        yield _read_slice(poison.pk, start=start, length=CHUNK)


def _read_slice(poison_id: int, *, start: int, length: int) -> bytes:
    """Read a part of a message's body from Postgres."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT substring(content FROM %s FOR %s) FROM poison_body"
            " WHERE poison_id = %s",
            [start + 1, length, poison_id],
        )
        return bytes(cursor.fetchone()[0])


def _pairs(flat: Sequence[bytes | memoryview]) -> tuple[Header, ...]:
    """Pair the names and values of a captured message's headers, which alternate."""
    parts = [bytes(part) for part in flat]
    return tuple(zip(parts[::2], parts[1::2], strict=True))
