"""Which entries of the trail are asked for, by pages, files and the API alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Final, Self

from django.db import connection
from django.db.models import F, Max, Min, Q, QuerySet

from apps.audit.models import Entry
from apps.audit.services import Action
from apps.core.errors import Invalid
from apps.core.text import storable

# A name of a topic may have 255 characters, and stands behind the kind of the subject.
TEXT_LIMIT: Final = 275
DAY: Final = len("2026-11-20")
# What pages call a message, the trail calls a poison.
ALIASES: Final = {"message": "poison"}
AT_ONCE: Final = 500
MOST_DECISIONS: Final = 10_000
MOST_ACTORS: Final = 10_000
KINDS_OF_ACTORS: Final = ("user", "key", "system")
PROBLEM = re.compile(r"problem:(\d{1,18})", re.ASCII)
# The names of the filters in addresses, and what each takes.
PARAMETERS: Final = {
    "actor": "user:anna, key:ci, or a name alone, in any case",
    "action": "operation.confirmed",
    "subject": "operation:12, topic:orders; message:4, problem:27 (with operations)",
    "from": "a UTC day or a time; included",
    "to": "a UTC day or a time; included",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrailFilter:
    """Which entries of the trail to select; a member that is None selects all of them.

    `since` and `until` are included. `operations` are further subjects: the operations
    that held the message which `subject` names.
    """

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    operations: tuple[str, ...] = ()

    @classmethod
    def parse(cls, params: Mapping[str, str]) -> Self:
        """Read the parameters of a request; raises Invalid for the first bad one."""
        return cls(
            actor=_text("actor", params.get("actor")),
            action=_action(params.get("action")),
            subject=_subject(params.get("subject")),
            since=_moment("from", params.get("from"), time.min),
            until=_moment("to", params.get("to"), time.max),
        )

    def matching(self) -> QuerySet[Entry]:
        """Select the entries, newest first by their number.

        Times become a range of numbers, so that Postgres can read along the index of
        another filter, or along the numbers, and stop where the range ends.
        """
        conditions = [
            *([] if self.actor is None else [_by(self.actor)]),
            *([] if self.action is None else [Q(action=self.action)]),
            *([] if self.subject is None else [_about(self.subject, self.operations)]),
        ]
        entries = Entry.objects.filter(*conditions).order_by("-seq")
        if self.since is None and self.until is None:
            return entries
        timely = _within(Entry.objects.all(), self.since, self.until)
        # A sum, for the least of a bare column would be looked up along the numbers.
        ends = timely.aggregate(first=Min(F("seq") + 0), last=Max(F("seq") + 0))
        if ends["first"] is None:
            return entries.none()
        numbers = entries.filter(seq__gte=ends["first"], seq__lte=ends["last"])
        return _within(numbers, self.since, self.until)


def in_pieces(entries: QuerySet[Entry]) -> Iterator[Entry]:
    """Read a long list by its numbers, some at a time: no transaction stays open."""
    below = entries
    while piece := list(below[:AT_ONCE]):
        yield from piece
        below = entries.filter(seq__lt=piece[-1].seq)


# One look into the index of actors for each of them, however long the trail is.
_ACTORS = """
WITH RECURSIVE known (actor) AS (
    (SELECT actor FROM audit_entry ORDER BY actor LIMIT 1)
    UNION ALL
    SELECT (SELECT actor FROM audit_entry WHERE actor > known.actor
            ORDER BY actor LIMIT 1)
    FROM known WHERE known.actor IS NOT NULL
)
SELECT actor FROM (SELECT actor FROM known LIMIT %(most)s) AS first
WHERE lower(actor) = ANY(SELECT lower(name) FROM unnest(%(names)s::text[]) AS name)
"""


def _by(actor: str) -> Q:
    """Select what an actor did; a name without its kind is of any kind and case."""
    if actor.partition(":")[0] in KINDS_OF_ACTORS:
        return Q(actor=actor)
    names = [f"{kind}:{actor}" for kind in KINDS_OF_ACTORS]
    with connection.cursor() as cursor:
        cursor.execute(_ACTORS, {"names": names, "most": MOST_ACTORS})
        actors = [name for (name,) in cursor.fetchall()]
    # One actor by itself is read along an index that has the numbers, too.
    return Q(actor=actors[0]) if len(actors) == 1 else Q(actor__in=actors)


def _about(subject: str, operations: Sequence[str]) -> Q:
    """Select what a subject names; of a problem, also the operations on it."""
    itself = Q(subject=subject)
    if operations:
        return Q(subject__in=[subject, *operations])
    number = PROBLEM.fullmatch(subject)
    if number is None:
        return itself
    # Looked up apart: Postgres expects one in 200 entries to be of any problem, and
    # would read along the numbers until it has found a page of them.
    decided = Entry.objects.filter(
        action=Action.OPERATION_CONFIRMED.value,
        detail__problems__contains=[int(number[1])],
    )
    numbers = list(
        decided.order_by().values_list("seq", flat=True)[: MOST_DECISIONS + 1]
    )
    if len(numbers) > MOST_DECISIONS:
        remedy = f"more than {MOST_DECISIONS:,} operations were on it; ask for one"
        raise Invalid("subject", remedy)
    return itself | Q(seq__in=numbers)


def _within(
    entries: QuerySet[Entry], since: datetime | None, until: datetime | None
) -> QuerySet[Entry]:
    times = {"at__gte": since, "at__lte": until}
    return entries.filter(
        **{name: moment for name, moment in times.items() if moment is not None}
    )


def _text(name: str, value: str | None) -> str | None:
    if not value:
        return None
    if len(value) > TEXT_LIMIT:
        raise Invalid(name, f"send text of at most {TEXT_LIMIT} characters")
    if value != storable(value):
        raise Invalid(name, "it holds a character that no stored text has")
    return value


def _action(value: str | None) -> str | None:
    if value and value not in {action.value for action in Action}:
        raise Invalid("action", f"send one of {', '.join(sorted(Action))}")
    return value or None


def _subject(value: str | None) -> str | None:
    subject = _text("subject", value)
    if subject is None:
        return None
    kind, colon, name = subject.partition(":")
    return f"{ALIASES.get(kind, kind)}{colon}{name}"


def _moment(name: str, value: str | None, of_the_day: time) -> datetime | None:
    """Read a time, or a day as its first or last moment; both in UTC if not said."""
    if not value:
        return None
    try:
        if len(value) == DAY:
            return datetime.combine(date.fromisoformat(value), of_the_day, UTC)
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        remedy = "send a day such as 2026-11-20, or a time such as 2026-11-20T09:30Z"
        raise Invalid(name, remedy) from None
