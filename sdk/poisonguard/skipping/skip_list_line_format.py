"""The line format of skip list snapshots: compact, and read piece by piece.

Each line is a JSON object in ASCII. The first says `epoch` and `revision`, the last
says `end`: true. Each between them holds up to `AT_ONCE` skips (`of`: "skips", or
"suspects"), column by column: a list has one value for each of them, anything else is
the value of them all, and what is left out is null. Times are microseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from poisonguard.contract import Invalid

MEDIA_TYPE = "application/vnd.poisonweb.skips+jsonl"
# Servers without the lines format answer with JSON.
ACCEPT = f"{MEDIA_TYPE}, application/json;q=0.5"

AT_ONCE = 1_000
MOST_AT_ONCE = 100_000  # `number` alone could claim any size
# Lines of long skips hold fewer of them, to limit memory.
LINE_BYTES = 262_144
# A line of one skip whose text is as long as any, with all its escapes, and room.
LONGEST_LINE = 16 * 1024 * 1024

COLUMNS = (
    *("id", "kind", "value", "consumer_group", "handler_version", "redrive"),
    *("expires_at", "reason", "by", "at", "poison"),
)
SUSPECT_COLUMNS = (*COLUMNS, "message_id", "seq")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
LEAST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
MOST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND

Row = Sequence[Any]
Columns = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SkipListVersion:
    """The version of the list."""

    epoch: str
    revision: int


@dataclass(frozen=True, slots=True)
class Block:
    """Some skips, or some suspects, in columns as received."""

    of: str
    number: int
    columns: Columns

    def __getitem__(self, name: str) -> Any:
        return self.columns.get(name)

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield each skip of a block as the JSON object of the API."""
        for place in range(self.number):
            yield self._row(place)

    def _row(self, place: int) -> dict[str, object]:
        """Return one skip of a block that was read as the JSON object of the API."""
        row = {
            name: value[place] if isinstance(value, list) else value
            for name, value in self.columns.items()
        }
        matcher = {"kind": row.pop("kind", None), "value": row.pop("value", None)}
        times = {name: _as_iso_text(row.get(name)) for name in ("expires_at", "at")}
        return {**row, **times, "matcher": matcher}


def microseconds(moment: datetime) -> int:
    """Convert a time to microseconds since 1970."""
    return (moment - EPOCH) // _MICROSECOND


def moment(since_1970: int) -> datetime:
    """Convert microseconds since 1970 to a time."""
    return EPOCH + timedelta(microseconds=since_1970)


def _as_iso_text(since_1970: object) -> object:
    """Write a snapshot's microseconds as ISO 8601; leave others for a parser.

    It rejects them.
    """
    if type(since_1970) is not int or not LEAST <= since_1970 <= MOST:
        return since_1970
    return moment(since_1970).isoformat()


# Writing


def lines(
    *,
    epoch: str,
    revision: int,
    skips: Iterable[Row],
    suspects: Iterable[Row],
    encode: Callable[[Any], str] = json.dumps,
) -> Iterator[bytes]:
    """Yield the lines of a skip snapshot; rows hold `COLUMNS` or `SUSPECT_COLUMNS`."""
    yield _line({"epoch": epoch, "revision": revision}, encode)
    for of, names, rows in (
        ("skips", COLUMNS, skips),
        ("suspects", SUSPECT_COLUMNS, suspects),
    ):
        for some in _batches(rows):
            for part in _alike(some):
                yield _line({"of": of, **_columns(names, part)}, encode)
    yield _line({"end": True}, encode)


def _line(content: object, encode: Callable[[Any], str]) -> bytes:
    """Encode one JSON object of a skip snapshot as a line."""
    return encode(content).encode("ascii") + b"\n"


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Split the rows of skips into lists of up to AT_ONCE."""
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _alike(rows: list[Row]) -> Iterator[list[Row]]:
    """Split rows of skips to write by kind: readers read one kind's block fast."""
    for kind in dict.fromkeys(row[1] for row in rows):
        yield from _parts([row for row in rows if row[1] == kind])


def _parts(rows: list[Row]) -> Iterator[list[Row]]:
    """Halve the rows of skips until each part fits a line."""
    if len(rows) == 1 or _size(rows) <= LINE_BYTES:
        yield rows
    else:
        middle = len(rows) // 2
        yield from _parts(rows[:middle])
        yield from _parts(rows[middle:])


def _size(rows: list[Row]) -> int:
    """Estimate the bytes of rows of skips by the lengths of their texts."""
    return sum(len(row[2]) + len(row[7] or "") for row in rows)


def _columns(names: Sequence[str], rows: list[Row]) -> dict[str, Any]:
    """Turn rows of skips into columns: one value for all where equal."""
    columns: dict[str, Any] = {"number": len(rows)}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        first = values[0]
        if values.count(first) < len(values) or name == "id":
            columns[name] = values
        elif first is not None:
            columns[name] = first
    return columns


# Reading


def read(lines: Iterable[bytes]) -> tuple[SkipListVersion, Iterator[Block]]:
    """Return a skip snapshot's head, and an iterator over its blocks of skips.

    Both raise `Invalid` where the lines are no snapshot, or are cut.
    """
    contents = map(_content, lines)
    return _head(next(contents, {})), _blocks(contents)


def _blocks(contents: Iterable[dict[str, Any]]) -> Iterator[Block]:
    """Yield each block of a skip snapshot; raise Invalid if its end is missing."""
    for content in contents:
        if content.get("end") is True:
            return
        if "of" in content:
            yield _block(content)
    raise Invalid("", "The snapshot has no end.")


def _content(line: bytes) -> dict[str, Any]:
    """Parse a line of a skip snapshot; raise Invalid if it is no JSON object."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise Invalid("", "A line of the snapshot is no JSON.") from None
    if not isinstance(content, dict):
        raise Invalid("", "A line of the snapshot is no JSON object.")
    return content


def _head(content: dict[str, Any]) -> SkipListVersion:
    """Read a skip snapshot's first line; raise Invalid if it names no place."""
    epoch, revision = content.get("epoch"), content.get("revision")
    if not isinstance(epoch, str) or type(revision) is not int:
        raise Invalid("", "The snapshot does not say where the list stands.")
    return SkipListVersion(epoch, revision)


def _block(content: dict[str, Any]) -> Block:
    """Read a snapshot's line of columns; raise Invalid if they differ in length."""
    of, number = content.pop("of"), content.pop("number", None)
    lengths = {len(value) for value in content.values() if isinstance(value, list)}
    is_counted = type(number) is int and 0 <= number <= MOST_AT_ONCE
    if not isinstance(of, str) or not is_counted or lengths - {number}:
        raise Invalid("", "A line of the snapshot has columns of several lengths.")
    return Block(of, number, content)
