"""What consumers ask for and tell, parsed once into frozen values.

All raise Invalid, whose field is the path of the member: `settled/3` is the fourth run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from apps.bookmarks.runs import LAST, NOWHERE, Run, Runs
from apps.core.errors import Invalid

NAME_LIMIT = 255
BOOKMARK_LIMIT = 1000
# Beyond so many runs a position is mostly holes: its consumer has to wait.
MOST_RUNS = 4096
EPOCH_LIMIT = 2**63 - 1

# C0, DEL and C1, and the surrogates that only broken text holds alone.
_UNCLEAN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Whose positions are opened: all of a client, or of one sub id, or topic."""

    client_name: str
    sub_id: str | None
    topic: str | None
    replays: bool

    @classmethod
    def parse(cls, told: Mapping[str, object]) -> Self:
        return cls(
            client_name=_name(told, "client_name"),
            sub_id=_optional_name(told, "sub_id"),
            topic=_optional_name(told, "topic"),
            replays=_replays(told.get("replays")),
        )


# A tuple, for thousands are made at once: a frozen dataclass takes four times as long.
class Update(NamedTuple):
    """What a holder of a position tells of one publisher's messages.

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
    def parse(cls, told: object) -> Self:
        if not isinstance(told, Mapping):
            raise Invalid("", "send a JSON object")
        # In their order, for by name it takes half as long again.
        return cls(
            _name(told, "client_name"),
            _name(told, "sub_id"),
            _name(told, "topic"),
            _text(told, "publisher", NAME_LIMIT),
            _epoch(told.get("epoch")),
            _runs(told.get("settled")),
            _mark(told, "received"),
            _mark(told, "persisted"),
            _text(told, "bookmark", BOOKMARK_LIMIT),
        )


def seqs(value: object) -> dict[str, int]:
    """Read `{publisher: number}` of a move; -1 is the place before the first."""
    if not isinstance(value, Mapping) or not value:
        raise Invalid("to", 'send an object of publisher to number: {"": 42}')
    for publisher, seq in value.items():
        _check_text(f"to/{publisher}", publisher, NAME_LIMIT)
        if seq != NOWHERE:
            _seq(f"to/{publisher}", seq)
    return dict(value)


def _name(told: Mapping[str, object], field: str) -> str:
    value = told.get(field)
    if not isinstance(value, str) or not value.strip():
        raise Invalid(field, "it is missing: send its name")
    return _check_text(field, value, NAME_LIMIT)


def _optional_name(told: Mapping[str, object], field: str) -> str | None:
    return None if told.get(field) is None else _name(told, field)


def _text(told: Mapping[str, object], field: str, limit: int) -> str:
    value = told.get(field)
    return "" if value is None else _check_text(field, value, limit)


def _check_text(field: str, value: object, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise Invalid(field, f"send text of at most {limit} characters")
    if not value.isprintable() and _UNCLEAN.search(value):
        remedy = "it holds a control character or half a surrogate pair: remove it"
        raise Invalid(field, remedy)
    return value


def _replays(value: object) -> bool:
    if value is not None and not isinstance(value, bool):
        raise Invalid("replays", "send true or false")
    # Who keeps its position here is handed old messages again when it starts anew.
    return value is not False


def _epoch(value: object) -> int:
    if type(value) is not int or not 0 < value <= EPOCH_LIMIT:
        raise Invalid("epoch", "send the epoch that opening this position gave")
    return value


def _mark(told: Mapping[str, object], field: str) -> int | None:
    value = told.get(field)
    return None if value is None else _seq(field, value)


def _runs(value: object) -> Runs:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Invalid("settled", "send a list of runs: [[first, last], ...]")
    if len(value) > MOST_RUNS:
        raise Invalid("settled", f"send at most {MOST_RUNS} runs in one update")
    return tuple([_run(place, run) for place, run in enumerate(value)])


def _run(place: int, value: object) -> Run:
    if not isinstance(value, list) or len(value) != 2:
        remedy = "send a pair: [first, last], both settled"
        raise Invalid(f"settled/{place}", remedy)
    low, high = value
    # Asked at once of the usual run; only one that is not is looked at end by end.
    if not (type(low) is type(high) is int and 0 <= low <= high <= LAST):
        field = f"settled/{place}"
        low, high = _seq(field, low), _seq(field, high)
        raise Invalid(field, f"it is upside down: send [{high}, {low}]")
    return low, high


def _seq(field: str, value: object) -> int:
    # A bool is an int to Python; True would be message 1.
    if type(value) is not int or not 0 <= value <= LAST:
        raise Invalid(field, f"send whole numbers from 0 to 2^63-2 ({LAST})")
    return value
