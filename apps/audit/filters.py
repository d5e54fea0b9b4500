"""Filter the audit trail, for pages, downloads and the API alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from typing import Final, Self

from django.db import connection
from django.db.models import F, Max, Min, Q, QuerySet

from apps.audit.models import Entry
from apps.audit.services import Action
from apps.core import keyset
from apps.core.errors import Invalid
from apps.core.moment_parsing import parse_moment
from apps.core.text_cleaning import storable

# A topic's name may have 255 characters; the subject puts its kind before it.
TEXT_LIMIT: Final = 275
# Pages say message; subjects in the trail say poison.
ALIASES: Final = {"message": "poison"}
AT_ONCE: Final = 500
MOST_DECISIONS: Final = 10_000
MOST_ACTORS: Final = 10_000
KINDS_OF_ACTORS: Final = ("user", "key", "system")
PROBLEM = re.compile(r"problem:(\d{1,18})", re.ASCII)
# The filters' query parameters, with examples of their values.
PARAMETERS: Final = {
    "actor": "user:anna, key:ci, or a name alone, in any case",
    "action": "operation.confirmed",
    "subject": "operation:12, topic:orders; message:4, problem:27 (with operations)",
    "from": "a UTC day or a time; included",
    "to": "a UTC day or a time; included",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrailFilter:
    """Conditions on the entries of the trail; a None member allows all of them.

    `since` and `until` are included. `operations` are more subjects: the operations on
    the message that `subject` names.
    """

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    operations: tuple[str, ...] = ()

    @classmethod
    def parse(cls, params: Mapping[str, str]) -> Self:
        """Parse a filter of audit entries; raises Invalid for the first bad field."""
        return cls(
            actor=_checked_text("actor", params.get("actor")),
            action=_checked_action(params.get("action")),
            subject=_full_subject(params.get("subject")),
            since=parse_moment("from", params.get("from"), time.min),
            until=parse_moment("to", params.get("to"), time.max),
        )

    def matching(self) -> QuerySet[Entry]:
        """Select the audit entries of this filter, newest first by their number.

        Times become a range of numbers, so that Postgres can scan the index of another
        filter, or the primary key, and stop at the end of the range.
        """
        conditions = [
            *([] if self.actor is None else [_of_actor(self.actor)]),
            *([] if self.action is None else [Q(action=self.action)]),
            *(
                []
                if self.subject is None
                else [_of_subject(self.subject, self.operations)]
            ),
        ]
        entries = Entry.objects.filter(*conditions).order_by("-seq")
        if self.since is None and self.until is None:
            return entries
        in_time = _between(Entry.objects.all(), self.since, self.until)
        # Plus 0, because for MIN of a bare column Postgres would scan the primary key.
        ends = in_time.aggregate(first=Min(F("seq") + 0), last=Max(F("seq") + 0))
        if ends["first"] is None:
            return entries.none()
        in_range = entries.filter(seq__gte=ends["first"], seq__lte=ends["last"])
        return _between(in_range, self.since, self.until)


def in_pieces(entries: QuerySet[Entry]) -> Iterator[Entry]:
    """Yield many audit entries in pieces by number: no transaction stays open."""
    rest = entries
    while page := list(rest[:AT_ONCE]):
        yield from page
        rest = keyset.beyond(entries, [page[-1].seq])


# A loose index scan: one look into the index for each actor, however long the trail is.
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


def _of_actor(actor: str) -> Q:
    """Select the audit entries of an actor; a bare name matches any kind and case."""
    if actor.partition(":")[0] in KINDS_OF_ACTORS:
        return Q(actor=actor)
    names = [f"{kind}:{actor}" for kind in KINDS_OF_ACTORS]
    with connection.cursor() as cursor:
        cursor.execute(_ACTORS, {"names": names, "most": MOST_ACTORS})
        actors = [name for (name,) in cursor.fetchall()]
    # For exactly one actor Postgres can use the index on actor and number.
    return Q(actor=actors[0]) if len(actors) == 1 else Q(actor__in=actors)


def _of_subject(subject: str, operations: Sequence[str]) -> Q:
    """Select a subject's audit entries; for a problem, also its operations'."""
    itself = Q(subject=subject)
    if operations:
        return Q(subject__in=[subject, *operations])
    number = PROBLEM.fullmatch(subject)
    if number is None:
        return itself
    # A query of its own: Postgres expects one in 200 entries to match any problem, and
    # would scan the primary key until it has a page of them.
    decisions = Entry.objects.filter(
        action=Action.OPERATION_CONFIRMED.value,
        detail__problems__contains=[int(number[1])],
    )
    numbers = list(
        decisions.order_by().values_list("seq", flat=True)[: MOST_DECISIONS + 1]
    )
    if len(numbers) > MOST_DECISIONS:
        remedy = f"more than {MOST_DECISIONS:,} operations were on it; ask for one"
        raise Invalid("subject", remedy)
    return itself | Q(seq__in=numbers)


def _between(
    entries: QuerySet[Entry], since: datetime | None, until: datetime | None
) -> QuerySet[Entry]:
    """Select the audit entries from `since` until `until`; None is no limit."""
    times = {"at__gte": since, "at__lte": until}
    return entries.filter(
        **{name: moment for name, moment in times.items() if moment is not None}
    )


def _checked_text(name: str, value: str | None) -> str | None:
    """Return an audit filter's text, None if empty; raise Invalid if never stored."""
    if not value:
        return None
    if len(value) > TEXT_LIMIT:
        raise Invalid(name, f"send text of at most {TEXT_LIMIT} characters")
    if value != storable(value):
        raise Invalid(name, "it holds a character that no stored text has")
    return value


def _checked_action(value: str | None) -> str | None:
    """Return an audited action, None if empty; raise Invalid for any other."""
    if value and value not in {action.value for action in Action}:
        raise Invalid("action", f"send one of {', '.join(sorted(Action))}")
    return value or None


def _full_subject(value: str | None) -> str | None:
    """Return an audit subject, with an alias of its kind replaced; None if empty."""
    subject = _checked_text("subject", value)
    if subject is None:
        return None
    kind, colon, name = subject.partition(":")
    return f"{ALIASES.get(kind, kind)}{colon}{name}"
