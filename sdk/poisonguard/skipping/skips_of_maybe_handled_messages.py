"""Skips of messages that this consumer may have handled."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poisonguard.contract import Skip

# Messages in flight when their skip arrives are handled after so many seconds.
DOUBT_FOR = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """A skip of a message that we may have handled, with what identifies the message.

    It arrived at `since`, on the monotonic clock.
    """

    skip: Skip
    message_id: str | None
    seq: int | None
    since: float


class Doubts:
    """The skips that end if we have handled their messages, by their ids.

    Another consumer failed on the `suspects`; they are not skipped yet.
    """

    def __init__(self) -> None:
        self.suspects: dict[int, Doubt] = {}
        self._recent: dict[int, Doubt] = {}

    def all(self, *, now: float) -> list[Doubt]:
        """Return the suspected messages, and the new skips of the last minute."""
        lately, since = self._recent.items(), now - DOUBT_FOR
        self._recent = {key: each for key, each in lately if each.since > since}
        return [*self.suspects.values(), *self._recent.values()]

    def add(self, skip_id: int, doubt: Doubt) -> None:
        """Note a new skip, whose message we may have handled, for DOUBT_FOR seconds."""
        self._recent.setdefault(skip_id, doubt)

    def turn_into_new_skip(self, skip_id: int, *, now: float) -> None:
        """Turn a suspect of this guard's list into a new skip to doubt, as of now."""
        suspected = self.suspects.pop(skip_id, None)
        if suspected is not None:
            self._recent[skip_id] = replace(suspected, since=now)

    def settle(self, skip_id: int) -> None:
        """Stop checking whether we handled the message of a suspect or a new skip."""
        self.suspects.pop(skip_id, None)
        self._recent.pop(skip_id, None)
