"""The data of the audit page and its download files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from django.urls import reverse
from django.utils.http import urlencode

from apps.audit.filters import AT_ONCE, TrailFilter, in_pieces
from apps.audit.models import Entry
from apps.brokers.models import Broker, Topic
from apps.core.errors import Invalid
from apps.dashboard import keyset_pagination
from apps.dashboard.keyset_pagination import ListCursor
from apps.dashboard.presentation.audit_entry_changes import Details
from apps.dashboard.presentation.audit_entry_sentences import sentence
from apps.team.models import ApiKey, User

MOST_EXPORTED: Final = 100_000
MOST_SUGGESTED: Final = 200
# The kinds of subjects whose page has their number, with the name of that page.
NUMBERED: Final = {
    "operation": "operation",
    "poison": "message",
    "problem": "problem",
    "position": "position",
    "skip": "skip",
}
LABELS: Final = {"api_key": "Key", "user": "Account"}
LONGEST_NUMBER: Final = 18
COLUMNS: Final = (
    *("seq", "at", "actor", "action", "subject", "reason", "source"),
    *("sentence", "detail", "hash"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrailRow:
    """An audit entry as a sentence; `href` is the page of its subject, if any."""

    entry: Entry
    sentence: str
    details: Details
    label: str
    href: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrailPage:
    rows: Sequence[TrailRow]
    newer: ListCursor | None
    older: ListCursor | None


def find(
    filters: TrailFilter, cursor: ListCursor | None, *, sees_people: bool
) -> TrailPage:
    """Return a page of audit entries; link to people only if `sees_people`."""
    page = keyset_pagination.page(filters.matching(), cursor=cursor)
    rows = _rows(page.rows, sees_people=sees_people)
    return TrailPage(rows=rows, newer=page.newer, older=page.older)


def actors() -> list[str]:
    """List people and API keys as the audit names actors: "user:ada", "key:ci".

    Lists only the first of each, up to a limit.
    """
    people = User.objects.order_by("username").values_list("username", flat=True)
    keys = ApiKey.objects.order_by("name").values_list("name", flat=True)
    return [
        *(f"user:{name}" for name in people[:MOST_SUGGESTED]),
        *(f"key:{name}" for name in keys[:MOST_SUGGESTED]),
    ]


def export(filters: TrailFilter) -> Iterator[Entry]:
    """Yield all matching audit entries, newest first; raises Invalid if too many."""
    entries = filters.matching()
    if entries[MOST_EXPORTED : MOST_EXPORTED + 1].exists():
        remedy = f"a file has at most {MOST_EXPORTED:,} entries; choose fewer days"
        raise Invalid("from", remedy)
    return in_pieces(entries)


def cells(entries: Iterable[Entry]) -> Iterator[Sequence[object]]:
    """Yield each audit entry as a row of the CSV file, under COLUMNS."""
    for entry in entries:
        yield (
            *(entry.seq, _stamp(entry.at), entry.actor, entry.action),
            *(entry.subject, entry.reason, entry.source, sentence(entry)),
            *(json.dumps(entry.detail, sort_keys=True), bytes(entry.hash).hex()),
        )


def lines(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield audit entries as lines of JSON, many lines at a time.

    `hash` covers the hash of the previous entry, followed by `record`.
    """
    rows = iter(entries)
    while piece := list(islice(rows, AT_ONCE)):
        yield "".join(f"{json.dumps(_members(each))}\n" for each in piece).encode()


def _members(entry: Entry) -> dict[str, object]:
    """Return the members of an audit entry's line of JSON."""
    return {
        "seq": entry.seq,
        "at": _stamp(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "subject": entry.subject,
        "reason": entry.reason,
        "source": entry.source,
        "sentence": sentence(entry),
        "detail": entry.detail,
        "record": entry.record,
        "hash": bytes(entry.hash).hex(),
    }


def _stamp(at: datetime) -> str:
    """Format an audit entry's time in UTC, as the downloads have it."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _rows(entries: Sequence[Entry], *, sees_people: bool) -> list[TrailRow]:
    """Build the audit page's rows: each entry's sentence, and a link to its subject."""
    subjects = [str(entry.subject) for entry in entries]
    places = _places(subjects) | (_places_of_people(subjects) if sees_people else {})
    return [_trail_row(entry, places) for entry in entries]


def _trail_row(entry: Entry, places: Mapping[str, str]) -> TrailRow:
    """Describe an audit entry in a sentence, with details and a link."""
    label, href = _label_and_link(entry, places)
    return TrailRow(
        entry=entry,
        sentence=sentence(entry),
        details=Details.of(entry),
        label=label,
        href=href,
    )


def _label_and_link(entry: Entry, places: Mapping[str, str]) -> tuple[str, str]:
    """Return the label and page of an audit entry's subject; "" without a page."""
    kind, _, name = str(entry.subject).partition(":")
    if kind == "report":
        return f"Report {name}", _report_link(entry)
    if kind in NUMBERED and name.isascii() and name.isdigit():
        page = NUMBERED[kind]
        href = reverse(page, args=[name]) if len(name) <= LONGEST_NUMBER else ""
        return f"{page.capitalize()} {name}", href
    label = f"{LABELS.get(kind, kind.capitalize())} {name}"
    return label, places.get(str(entry.subject), "")


def _report_link(entry: Entry) -> str:
    """Return the address of the report of the days in an audit entry."""
    detail = entry.detail if isinstance(entry.detail, Mapping) else {}
    days = {name: str(detail.get(name, "")) for name in ("from", "to")}
    return f"{reverse('reports')}?{urlencode(days)}"


def _places(subjects: Iterable[str]) -> dict[str, str]:
    """Map audit subjects to pages of topics, lanes and brokers still there."""
    names = _names(subjects)
    topics = Topic.objects.filter(name__in=names["topic"] | names["lane"])
    brokers = Broker.objects.filter(name__in=names["broker"])
    places = dict[str, str]()
    for name, pk in topics.values_list("name", "pk"):
        href = reverse("topic", args=[pk])
        places |= {f"topic:{name}": href, f"lane:{name}": href}
    for name, pk in brokers.values_list("name", "pk"):
        places[f"broker:{name}"] = reverse("broker", args=[pk])
    return places


def _places_of_people(subjects: Iterable[str]) -> dict[str, str]:
    """Map audit subjects to the pages of people, and to the page of all keys."""
    names = _names(subjects)
    people = User.objects.filter(username__in=names["user"])
    places = {f"api_key:{name}": reverse("keys") for name in names["api_key"]}
    for name, pk in people.values_list("username", "pk"):
        places[f"user:{name}"] = reverse("person", args=[pk])
    return places


def _names(subjects: Iterable[str]) -> Mapping[str, set[str]]:
    """Group the names of audit subjects by their kind."""
    names: dict[str, set[str]] = defaultdict(set)
    for subject in subjects:
        kind, _, name = subject.partition(":")
        names[kind].add(name)
    return names
