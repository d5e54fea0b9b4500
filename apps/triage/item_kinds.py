"""What operations act on: one engine, and an object for each kind of item.

The engine selects, judges, holds, paces, pauses and cancels. A kind names its tables,
says in SQL what cannot be acted on, and acts. An app above this one registers a kind
when it starts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from django.db.models import QuerySet

from apps.triage.operation_states import ItemKindName, Verb

if TYPE_CHECKING:
    from apps.triage.models import Operation
    from apps.triage.preview_breakdown import ItemBreakdown
    from apps.triage.services.selection_requests import SelectionRequest

ItemKey = int | uuid.UUID
# Of what came after a preview, so many items are counted.
MOST_COUNTED = 10_001


@dataclass(frozen=True, kw_only=True, slots=True)
class Judging:
    """What becomes of the items that may be acted on, once they are judged.

    `statement` is SQL over `judged` that returns their numbers; `dropped` and
    `restored` count them in a window. `holds`: they wait until a run acts on them.
    """

    statement: str
    dropped: str = "0"
    restored: str = "0"
    holds: bool = False


class ActInDatabase(Protocol):
    """Act on some items in the open transaction; return why some stay as they are.

    It locks them, and looks again at what may have changed since they were judged.
    """

    def __call__(
        self, keys: Mapping[int, Any], *, now: datetime
    ) -> Mapping[int, str]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseAct:
    """How a run acts on what it holds, where nothing is sent to a broker.

    `standing` is that of the items that it acted on, `most` their number in one
    transaction.
    """

    act: ActInDatabase
    standing: str
    most: int


class _Select(Protocol):
    def __call__(
        self, selection: SelectionRequest, *, topics: Sequence[str]
    ) -> QuerySet[Any]: ...


class _SelectionOf(Protocol):
    def __call__(self, operation: Operation) -> SelectionRequest | None: ...


class _Count(Protocol):
    def __call__(self, operation: Operation, *, now: datetime) -> ItemBreakdown: ...


class _CountNewer(Protocol):
    def __call__(self, operation: Operation) -> int: ...


class _Free(Protocol):
    def __call__(
        self, *, operation: int, first: int, end: int, now: datetime
    ) -> None: ...


class _Detail(Protocol):
    def __call__(self, operation: Operation) -> Mapping[str, object]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemKind:
    """A kind of item: its tables, and what the engine asks of it.

    `key` is the column of `items` and of `holds` that refers to `table`, and the
    primary key of `holds`, so that an item has one open operation. `columns` are what
    `Judging` needs of `table`, and `as_of` keeps what was there when it was asked for.
    `key_in_subject` finds its key in the subject of an audit entry, None in others.
    `standings` selects an `ItemStanding` for each row of `{items}`; `reasons` are
    clauses of a CASE over `table`.
    """

    name: ItemKindName
    table: str
    items: str
    key: str
    holds: str
    reasons: Mapping[Verb, str]
    judging: Mapping[Verb, Judging]
    standings: str
    select: _Select
    selection_of: _SelectionOf
    count: _Count
    count_newer: _CountNewer
    free: _Free
    key_in_subject: Callable[[str], str | None]
    problem_detail: _Detail
    single_item_detail: _Detail
    database_acts: Mapping[Verb, DatabaseAct] = field(default_factory=dict)
    columns: str = ""
    as_of: str = ""
    order: str
    join_by_capture: str = ""
    order_by_capture: str = ""
    is_locked_to_judge: bool = True
    is_deleted_by_age: bool = False

    def sql(self, statement: str, **parts: str) -> str:
        """Fill the tables of the item kind, and other parts, into a SQL statement."""
        return statement.format(
            table=self.table,
            items=self.items,
            key=self.key,
            holds=self.holds,
            columns=self.columns,
            join="LEFT JOIN" if self.is_deleted_by_age else "JOIN",
            as_of=self.as_of,
            **parts,
        )


_kinds: dict[ItemKindName, ItemKind] = {}


def register(kind: ItemKind) -> None:
    """Let operations act on items of this kind: messages or deliveries."""
    _kinds[kind.name] = kind


def kind_of(operation: Operation) -> ItemKind:
    """Return the kind of an operation's items: messages or deliveries."""
    return _kinds[ItemKindName(operation.kind)]


def kind_named(name: ItemKindName) -> ItemKind:
    return _kinds[name]


def kind_of_subject(subject: str) -> tuple[ItemKind, str] | None:
    """Return the kind and the key of the item that an audit subject names."""
    for kind in _kinds.values():
        if key := kind.key_in_subject(subject):
            return kind, key
    return None
