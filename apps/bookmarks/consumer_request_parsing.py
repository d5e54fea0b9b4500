"""Parse requests of consumers into frozen values.

All parsers raise Invalid with the path of the member: `settled/3` is the fourth run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from apps.bookmarks.runs_of_settled_positions import LAST, Run, Runs
from apps.core.errors import Invalid
from poisonguard.contract import NAME_LIMIT, has_control_character

BOOKMARK_LIMIT = 1000
# A position with more runs is mostly holes: its consumer has to wait.
MOST_RUNS = 4096
EPOCH_LIMIT = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Names the positions to open: all of a client, or of one sub id, or topic."""

    client_name: str
    sub_id: str | None
    topic: str | None
    replays: bool

    @classmethod
    def parse(cls, data: Mapping[str, object]) -> Self:
        """Parse the consumer that opens positions; raise Invalid for a bad field."""
        return cls(
            client_name=_parse_name(data, "client_name"),
            sub_id=_parse_optional_name(data, "sub_id"),
            topic=_parse_optional_name(data, "topic"),
            replays=_parse_replays(data.get("replays")),
        )


# A tuple, because requests hold thousands: a frozen dataclass takes four times as long.
class PositionUpdate(NamedTuple):
    """Progress that a holder reports for one publisher's messages.

    `bookmark` is the broker's text of the highest number in `settled`.
    """

    client_name: str
    sub_id: str
    topic: str
    publisher: str
    epoch: int
    settled: Runs
    received: int | None
    persisted: int | None
    bookmark: str

    @classmethod
    def parse(cls, data: object) -> Self:
        """Parse an update of a position; raise Invalid for a bad field."""
        if not isinstance(data, Mapping):
            raise Invalid("", "send a JSON object")
        # By position: keyword arguments take half as long again.
        return cls(
            _parse_name(data, "client_name"),
            _parse_name(data, "sub_id"),
            _parse_name(data, "topic"),
            _parse_text(data, "publisher", NAME_LIMIT),
            _parse_epoch(data.get("epoch")),
            _parse_runs(data.get("settled")),
            _parse_optional_seq(data, "received"),
            _parse_optional_seq(data, "persisted"),
            _parse_text(data, "bookmark", BOOKMARK_LIMIT),
        )


def _parse_name(data: Mapping[str, object], field: str) -> str:
    """Parse a consumer's required name; raise Invalid for a missing or bad one."""
    value = data.get(field)
    if not isinstance(value, str) or not value.strip():
        raise Invalid(field, "it is missing: send its name")
    return _check_text(field, value, NAME_LIMIT)


def _parse_optional_name(data: Mapping[str, object], field: str) -> str | None:
    """Parse a consumer's optional name, None if missing; raise Invalid if bad."""
    return None if data.get(field) is None else _parse_name(data, field)


def _parse_text(data: Mapping[str, object], field: str, limit: int) -> str:
    """Parse a consumer's text, "" if missing; raise Invalid for a bad one."""
    value = data.get(field)
    return "" if value is None else _check_text(field, value, limit)


def _check_text(field: str, value: object, limit: int) -> str:
    """Return a consumer's text; raise Invalid if too long, or with control signs."""
    if not isinstance(value, str) or len(value) > limit:
        raise Invalid(field, f"send text of at most {limit} characters")
    # Requests hold thousands of texts, and most are printable.
    if not value.isprintable() and has_control_character(value):
        remedy = "it holds a control character or half a surrogate pair: remove it"
        raise Invalid(field, remedy)
    return value


def _parse_replays(value: object) -> bool:
    """Parse whether a holder's topic hands out old messages again: true by default.

    Raises Invalid for a value that is neither true nor false.
    """
    if value is not None and not isinstance(value, bool):
        raise Invalid("replays", "send true or false")
    # A consumer with its position here receives old messages again when it restarts.
    return value is not False


def _parse_epoch(value: object) -> int:
    """Parse the epoch of a position; raise Invalid for a number that cannot be."""
    if type(value) is not int or not 0 < value <= EPOCH_LIMIT:
        raise Invalid("epoch", "send the epoch that opening this position gave")
    return value


def _parse_optional_seq(data: Mapping[str, object], field: str) -> int | None:
    """Parse a position's optional sequence number, None if missing; raise Invalid."""
    value = data.get(field)
    return None if value is None else _parse_seq(field, value)


def _parse_runs(value: object) -> Runs:
    """Parse a position's settled runs, () if missing; raise Invalid if bad."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Invalid("settled", "send a list of runs: [[first, last], ...]")
    if len(value) > MOST_RUNS:
        raise Invalid("settled", f"send at most {MOST_RUNS} runs in one update")
    return tuple([_parse_run(index, run) for index, run in enumerate(value)])


def _parse_run(index: int, value: object) -> Run:
    """Parse a settled run [first, last]; raise Invalid with its index if bad."""
    if not isinstance(value, list) or len(value) != 2:
        remedy = "send a pair: [first, last], both settled"
        raise Invalid(f"settled/{index}", remedy)
    low, high = value
    # Check the usual run at once; only an unusual one is checked end by end.
    if not (type(low) is type(high) is int and 0 <= low <= high <= LAST):
        field = f"settled/{index}"
        low, high = _parse_seq(field, low), _parse_seq(field, high)
        raise Invalid(field, f"it is upside down: send [{high}, {low}]")
    return low, high


def _parse_seq(field: str, value: object) -> int:
    """Parse a sequence number in a position's update; raise Invalid for others."""
    # A bool is an int to Python; True would be message 1.
    if type(value) is not int or not 0 <= value <= LAST:
        raise Invalid(field, f"send whole numbers from 0 to 2^63-2 ({LAST})")
    return value
