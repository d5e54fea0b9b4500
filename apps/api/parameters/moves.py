"""Parse a request to move a position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from apps.api.parameters.base import members_of, moment, reason, refuse_unknown
from apps.bookmarks import consumer_requests
from apps.core.errors import Invalid
from apps.triage.services.moves import MoveTarget, Strategy

MEMBERS = {"to", "at", "by", "other", "move", "reason", "fence", "dry_run"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveRequest:
    """Where to, and why; `fence` moves it although its holder is at work."""

    wish: MoveTarget
    reason: str
    fence: bool
    dry_run: bool

    @classmethod
    def parse(cls, data: object) -> Self:
        """Parse the body of a move; raises Invalid."""
        members = members_of(data)
        refuse_unknown(members, MEMBERS)
        return cls(
            wish=_target(members),
            reason=reason(members.get("reason")),
            fence=_flag("fence", members.get("fence", False)),
            dry_run=_flag("dry_run", members.get("dry_run", False)),
        )


def _target(data: Mapping[str, object]) -> MoveTarget:
    """Parse the one member that says where to move; raises Invalid."""
    names = [name for name in _PARSERS if data.get(name) is not None]
    if len(names) != 1:
        raise Invalid("to", f"send one of {', '.join(_PARSERS)}")
    return _PARSERS[names[0]](data[names[0]])


def _time_target(value: object) -> MoveTarget:
    """Parse the time to move to."""
    return MoveTarget(strategy=Strategy.TIME, at=moment("at", value))


def _whole(name: str, value: object) -> int:
    """Parse a whole number; raises Invalid."""
    # A bool is an int to Python; and no number in the database exceeds a bigint.
    if type(value) is not int or abs(value) > consumer_requests.EPOCH_LIMIT:
        raise Invalid(name, "send a whole number")
    return value


def _flag(name: str, value: object) -> bool:
    """Parse true or false, not null; raises Invalid."""
    # Refuse null: it would turn an intended dry run into a move.
    if not isinstance(value, bool):
        raise Invalid(name, "send true or false")
    return value


_PARSERS: dict[str, Callable[[object], MoveTarget]] = {
    "to": lambda value: MoveTarget(
        strategy=Strategy.EXACT, to=consumer_requests.seqs(value)
    ),
    "at": _time_target,
    "by": lambda value: MoveTarget(strategy=Strategy.SHIFT, by=_whole("by", value)),
    "other": lambda value: MoveTarget(
        strategy=Strategy.COPY, other=_whole("other", value)
    ),
    "move": lambda value: MoveTarget(
        strategy=Strategy.RESTORE, move=_whole("move", value)
    ),
}
