"""A compact table of skips in columns, converted to `Skip` on access.

A list of 100,000 skips is searched for each message, but its skips are rarely read. So
a skip is a row of numbers, its text, and an index of the values that many skips share
(group, version, reason and the like).
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import compress, repeat
from operator import lt
from typing import Any, NamedTuple

from poisonguard.contract import (
    SEQUENCE_LIMIT,
    TEXT_LIMIT,
    Invalid,
    MatcherKind,
    Skip,
    is_name,
    parse_skip,
)
from poisonguard.skipping.skip_list_line_format import (
    LEAST,
    MOST,
    Block,
    microseconds,
    moment,
)

log = logging.getLogger(__name__)

Key = str | bytes  # what a skip matches by: bytes for a digest
_NONE = -(2**63)  # stands for None in a column
_TEXTS = (MatcherKind.BOOKMARK, MatcherKind.MESSAGE_ID)


class SharedFields(NamedTuple):
    """The values that many skips share."""

    kind: MatcherKind
    consumer_group: str | None
    handler_version: str | None
    redrive: str | None
    reason: str
    by: str


_SHARED_FIELD_NAMES = ("consumer_group", "handler_version", "redrive", "reason", "by")


def key_of(skip: Skip) -> Key:
    """Return what a skip matches by: its value, bytes for a digest."""
    is_digest = skip.kind is MatcherKind.BODY_DIGEST
    return bytes.fromhex(skip.value) if is_digest else skip.value


class SkipTable:
    """The skips of a snapshot that apply, ordered by id.

    Add all rows first; after `close` none can be added, and rows are found by id.
    """

    def __init__(
        self, *, topic: str, applies: Callable[[SharedFields], bool], now: datetime
    ) -> None:
        self._topic = topic
        self._applies = applies
        self._now = microseconds(now)
        self._ids, self._expiries = array("q"), array("q")
        self._moments, self._poisons = array("q"), array("q")
        self._keys: list[Key] = []
        self._shared = array("I")  # indexes into `_shared_fields`
        self._shared_fields: list[SharedFields] = []
        self._places: dict[SharedFields, int] = {}
        self._in_scope: list[bool] = []
        self._removed = bytearray()
        self._live_count = 0
        self._by_expiry = array("I")  # the last one expires first

    def __len__(self) -> int:
        return self._live_count

    # Adding

    def add(self, skip: Skip) -> None:
        """Add a skip to the table if it applies to us."""
        facts = SharedFields(
            skip.kind,
            skip.consumer_group,
            skip.handler_version,
            skip.redrive,
            skip.reason,
            skip.by,
        )
        expiry = _NONE if skip.expires_at is None else microseconds(skip.expires_at)
        if not self._applies(facts) or _NONE < expiry <= self._now or skip.id is None:
            return
        self._ids.append(skip.id)
        self._keys.append(key_of(skip))
        self._expiries.append(expiry)
        self._moments.append(_NONE if skip.at is None else microseconds(skip.at))
        self._poisons.append(_NONE if skip.poison is None else skip.poison)
        self._shared.append(self._index_of(facts))

    def add_block(self, block: Block) -> None:
        """Add a block's applicable skips to the table; log unreadable ones."""
        try:
            self._add_columns(block)
        except (Invalid, TypeError, ValueError, OverflowError):
            # Several kinds, or unknown values: read the rows one by one.
            for row in block.rows():
                self._add_row(row)

    def _add_row(self, row: dict[str, object]) -> None:
        """Parse a snapshot's skip; add it if it applies, log an unreadable one."""
        try:
            self.add(parse_skip({**row, "topic": self._topic}))
        except Invalid as wrong:
            log.warning("a skip is not understood and not applied: %s", wrong.detail)

    def _add_columns(self, block: Block) -> None:
        """Add a block of valid skips of one kind; raise for any other block."""
        kind = MatcherKind(block["kind"])
        ids = _read_numbers(block, "id", 0, SEQUENCE_LIMIT)
        keys = _read_keys(block, kind)
        expiries = _read_numbers(block, "expires_at", LEAST, MOST)
        moments = _read_numbers(block, "at", LEAST, MOST)
        poisons = _read_numbers(block, "poison", 0, SEQUENCE_LIMIT)
        if _NONE in ids:
            raise Invalid("/id", "id is missing: send it.")
        shared = self._shared_of(block, kind)
        mask = [
            self._in_scope[place] and not _NONE < expiry <= self._now
            for place, expiry in zip(shared, expiries, strict=True)
        ]
        columns: tuple[tuple[Any, Any], ...] = (
            (self._ids, ids),
            (self._keys, keys),
            (self._expiries, expiries),
            (self._moments, moments),
            (self._poisons, poisons),
            (self._shared, shared),
        )
        for column, values in columns:
            column.extend(values if all(mask) else compress(values, mask))

    def _shared_of(self, block: Block, kind: MatcherKind) -> array[int]:
        """Return, for each skip of a block, the index of its shared values."""
        columns = [_read_texts(block, name) for name in _SHARED_FIELD_NAMES]
        if not any(isinstance(column, list) for column in columns):
            facts = SharedFields(kind, *columns)
            return array("I", [self._index_of(facts)]) * block.number
        rows = zip(*(_spread(column, block.number) for column in columns), strict=True)
        return array("I", [self._index_of(SharedFields(kind, *row)) for row in rows])

    def _index_of(self, facts: SharedFields) -> int:
        """Return the index of skips' shared values, storing new ones."""
        place = self._places.get(facts)
        if place is None:
            place = self._places[facts] = len(self._shared_fields)
            self._shared_fields.append(facts)
            self._in_scope.append(self._applies(facts))
        return place

    # The whole

    def close(self) -> None:
        """Sort the table's skips by id; of several with one id keep the last.

        None can be added after that.
        """
        if not all(map(lt, self._ids, self._ids[1:])):
            self._sort()
        self._places.clear()
        self._removed = bytearray(len(self._ids))
        self._live_count = len(self._ids)
        expiries = self._expiries
        ending = [row for row in range(self._live_count) if expiries[row] != _NONE]
        ending.sort(key=expiries.__getitem__, reverse=True)
        self._by_expiry = array("I", ending)

    def _sort(self) -> None:
        """Sort the table's columns by skip id; of rows with one id keep the last."""
        last = {number: row for row, number in enumerate(self._ids)}
        rows = [last[number] for number in sorted(last)]
        self._keys = [self._keys[row] for row in rows]
        for name in ("_ids", "_expiries", "_moments", "_poisons", "_shared"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, [column[row] for row in rows]))

    def rows(self) -> Iterator[tuple[int, MatcherKind, Key]]:
        """Yield each row of the skip table with its kind and key."""
        kinds = [facts.kind for facts in self._shared_fields]
        for row, (place, key) in enumerate(zip(self._shared, self._keys, strict=True)):
            if not self._removed[row]:
                yield row, kinds[place], key

    def ids(self) -> Iterator[tuple[int, int]]:
        """Yield each skip row that is not removed, with the id of its skip."""
        return (each for each in enumerate(self._ids) if not self._removed[each[0]])

    def row(self, number: int) -> int | None:
        """Find the row of a skip by its id; None for an unknown or removed one."""
        row = bisect_left(self._ids, number)
        if row == len(self._ids) or self._ids[row] != number or self._removed[row]:
            return None
        return row

    def skip(self, row: int) -> Skip:
        """Build the skip that a row of the table holds."""
        facts, key = self._shared_fields[self._shared[row]], self._keys[row]
        poison = self._poisons[row]
        return Skip(
            topic=self._topic,
            id=self._ids[row],
            value=key.hex() if isinstance(key, bytes) else key,
            expires_at=_moment(self._expiries[row]),
            at=_moment(self._moments[row]),
            poison=None if poison == _NONE else poison,
            **facts._asdict(),
        )

    def is_same(self, row: int, other: SkipTable, there: int) -> bool:
        """Tell whether two skip rows with one id are equal."""
        return (
            self._keys[row] == other._keys[there]
            and self._expiries[row] == other._expiries[there]
            and self._moments[row] == other._moments[there]
            and self._poisons[row] == other._poisons[there]
            and self._shared_fields[self._shared[row]]
            == other._shared_fields[other._shared[there]]
        )

    def remove(self, row: int) -> None:
        """Mark a skip's row as removed, and forget its key."""
        self._removed[row] = True
        self._keys[row] = ""
        self._live_count -= 1

    @property
    def dead(self) -> int:
        """Return the number of removed rows of the skip table."""
        return len(self._ids) - self._live_count

    # What is over

    @property
    def next_expiry(self) -> datetime | None:
        """Return when the table's first skip expires; None if none does."""
        order = self._by_expiry
        while order and self._removed[order[-1]]:
            order.pop()
        return _moment(self._expiries[order[-1]]) if order else None

    def expired(self, now: datetime) -> Iterator[int]:
        """Yield the rows of expired skips, each once."""
        while (first := self.next_expiry) is not None and first <= now:
            yield self._by_expiry.pop()


def _moment(since_1970: int) -> datetime | None:
    """Convert a number of a column of skips to a time; None for _NONE."""
    return None if since_1970 == _NONE else moment(since_1970)


def _spread(column: Any, number: int) -> Any:
    """Yield a skip column's value for each row, also where one stands for all."""
    return column if isinstance(column, list) else repeat(column, number)


def _read_numbers(block: Block, name: str, least: int, most: int) -> array[int]:
    """Read a skip column of whole numbers or null; raise Invalid if out of bounds."""
    column = block[name]
    if column is None:
        return array("q", [_NONE]) * block.number
    values = column if isinstance(column, list) else [column]
    kinds = set(map(type, values))
    if type(None) in kinds:
        values = [_NONE if value is None else value for value in values]
    numbers = (
        [value for value in values if value != _NONE] if _NONE in values else values
    )
    if kinds - {int, type(None)} or (numbers and not _within(numbers, least, most)):
        raise Invalid(f"/{name}", f"{name} is no whole number in its bounds.")
    as_array = array("q", values)
    return as_array if isinstance(column, list) else as_array * block.number


def _within(values: list[int], least: int, most: int) -> bool:
    """Tell whether all numbers are within bounds."""
    return least <= min(values) and max(values) <= most


def _read_keys(block: Block, kind: MatcherKind) -> list[Key]:
    """Read the column of what skips match by; raise Invalid for broken ones."""
    values = block["value"]
    if not isinstance(values, list):
        values = [values] * block.number
    if set(map(type, values)) - {str} or kind is MatcherKind.RULE:
        raise Invalid("/value", "value is no text.")
    if kind in _TEXTS:
        if max(map(len, values), default=0) > TEXT_LIMIT:
            raise Invalid("/value", f"value has more than {TEXT_LIMIT} characters.")
        return list(values)
    digests = [bytes.fromhex(value) for value in values]
    # Exactly 64 lower-case hexadecimal digits.
    if [digest.hex() for digest in digests] != values or {*map(len, digests)} - {32}:
        raise Invalid("/value", "value is no SHA-256.")
    return list(digests)


def _read_texts(block: Block, name: str) -> Any:
    """Read a skip column of shared texts or null; raise Invalid for anything else."""
    column = block[name]
    is_text = name in ("reason", "by")
    values = column if isinstance(column, list) else [column]
    for value in set(values):
        if value is not None and (
            not isinstance(value, str)
            or (name in ("consumer_group", "handler_version") and not is_name(value))
        ):
            raise Invalid(f"/{name}", f"{name} is no name.")
    if not is_text:
        return column
    if isinstance(column, list):
        return [value or "" for value in column]
    return column or ""
