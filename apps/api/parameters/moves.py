"""What a request to move a position asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from apps.api.parameters.base import members_of, moment, reason, refuse_unknown
from apps.bookmarks import wire
from apps.core.errors import Invalid
from apps.triage.services.moves import Strategy, Wish

MEMBERS = {"to", "at", "by", "other", "move", "reason", "fence", "dry_run"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Where to, and why; `fence` moves it under a holder at work."""

    wish: Wish
    reason: str
    fence: bool
    dry_run: bool

    @classmethod
    def parse(cls, data: object) -> Self:
        told = members_of(data)
        refuse_unknown(told, MEMBERS)
        return cls(
            wish=_wish(told),
            reason=reason(told.get("reason")),
            fence=_flag("fence", told.get("fence", False)),
            dry_run=_flag("dry_run", told.get("dry_run", False)),
        )


def _wish(data: Mapping[str, object]) -> Wish:
    told = [name for name in _WISHES if data.get(name) is not None]
    if len(told) != 1:
        raise Invalid("to", f"send one of {', '.join(_WISHES)}")
    return _WISHES[told[0]](data[told[0]])


def _time(value: object) -> Wish:
    return Wish(strategy=Strategy.TIME, at=moment("at", value))


def _whole(name: str, value: object) -> int:
    # A bool is an int to Python; and no number of ours is longer than a bigint.
    if type(value) is not int or abs(value) > wire.EPOCH_LIMIT:
        raise Invalid(name, "send a whole number")
    return value


def _flag(name: str, value: object) -> bool:
    # Null is no answer here: what was meant as a dry run would move.
    if not isinstance(value, bool):
        raise Invalid(name, "send true or false")
    return value


_WISHES: dict[str, Callable[[object], Wish]] = {
    "to": lambda told: Wish(strategy=Strategy.EXACT, to=wire.seqs(told)),
    "at": _time,
    "by": lambda told: Wish(strategy=Strategy.SHIFT, by=_whole("by", told)),
    "other": lambda told: Wish(strategy=Strategy.COPY, other=_whole("other", told)),
    "move": lambda told: Wish(strategy=Strategy.RESTORE, move=_whole("move", told)),
}
