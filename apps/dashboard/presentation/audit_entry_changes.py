"""The changes and other facts in the detail of an audit entry, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from apps.audit.models import Entry

MOST_ROWS: Final = 50
LONGEST_VALUE: Final = 500
NO_CHANGE: Final = (None, None)
# Actions whose details are pairs: [before, after].
PAIRED: Final = {"topic.altered", "endpoint.altered", "outbox.altered"}


class FieldChange(NamedTuple):
    field: str
    before: str
    after: str


class Fact(NamedTuple):
    name: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """The detail of an audit entry; `more` counts the rows left out."""

    changes: list[FieldChange]
    facts: list[Fact]
    more: int

    @classmethod
    def of(cls, entry: Entry) -> Details:
        """Return an audit entry's changes and facts, up to the most that are shown."""
        changed, others = changes(entry), facts(entry)
        return cls(
            changes=changed[:MOST_ROWS],
            facts=others[:MOST_ROWS],
            more=len(changed[MOST_ROWS:]) + len(others[MOST_ROWS:]),
        )


def changes(entry: Entry) -> list[FieldChange]:
    """List the changed fields of an audit entry's detail, with both values.

    A change of policies or settings stores a pair for each name: [before, after].
    """
    detail = _mapping_or_empty(entry.detail)
    before = _mapping_or_empty(detail.get("before"))
    after = _mapping_or_empty(detail.get("after"))
    sides = [(name, before.get(name), after.get(name)) for name in {**before, **after}]
    pairs = [(name, *_pair(entry, value)) for name, value in detail.items()]
    return [
        FieldChange(_shortened(name), _shortened(old), _shortened(new))
        for name, old, new in [*sides, *pairs]
        if old != new and not {_value_text(old), _value_text(new)} <= {""}
    ]


def facts(entry: Entry) -> list[Fact]:
    """List an audit entry's other facts, without empty or changed ones."""
    changed = {change.field for change in changes(entry)}
    return [
        Fact(_shortened(name), _shortened(value))
        for name, value in _mapping_or_empty(entry.detail).items()
        if name not in {"before", "after", *changed}
        and _pair(entry, value) == NO_CHANGE
        and value not in (None, "", [], {})
    ]


def _pair(entry: Entry, value: object) -> tuple[object, object]:
    """Split a changed setting of an audit entry into the values before and after.

    Returns NO_CHANGE for another value, and for entries that store no such pairs.
    """
    if entry.action in PAIRED and isinstance(value, list):
        before, after, *_ = *value, None, None
        return before, after
    return NO_CHANGE


def _mapping_or_empty(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _shortened(value: object) -> str:
    """Write a value of an audit entry as text of bounded length."""
    text = _value_text(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _value_text(value: object) -> str:
    """Write an audit entry's value as text; lists by commas, others as JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and not any(isinstance(e, list | dict) for e in value):
        return ", ".join(str(each) for each in islice(value, LONGEST_VALUE))
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
