"""Skips that this guard made and the server's list does not have yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from poisonguard.contract import Skip
from poisonguard.skipping.skip_index import SkipKey, full_key

OWN_LIMIT = 10_000  # beyond it the oldest are dropped
OWN_FOR = 600.0  # seconds for which the server's list may lack an own skip


@dataclass(frozen=True, slots=True)
class _OwnSkip:
    """A skip that this guard made, and since when (monotonic seconds)."""

    skip: Skip
    since: float

    def was_known_at(self, moment: float) -> bool:
        """Tell whether the server had answered the skip's report by that moment."""
        return self.skip.poison is not None and self.since < moment


class OwnSkips:
    """The own skips by key, the oldest first, with how often each was applied."""

    def __init__(self, *, limit: int = OWN_LIMIT) -> None:
        self._limit = limit
        self._own: dict[SkipKey, _OwnSkip] = {}
        self._applied: Counter[SkipKey] = Counter()

    def __len__(self) -> int:
        return len(self._own)

    def __contains__(self, key: object) -> bool:
        return key in self._own

    def __iter__(self) -> Iterator[tuple[SkipKey, Skip]]:
        return ((key, own.skip) for key, own in self._own.items())

    def has(self, skip: Skip) -> bool:
        """Tell whether this very skip, not an equal one, is among the own skips."""
        own = self._own.get(full_key(skip))
        return own is not None and own.skip is skip

    def add(self, key: SkipKey, skip: Skip, *, now: float) -> None:
        """Add a skip that this guard made."""
        self._own[key] = _OwnSkip(skip, now)

    def count_applied(self, key: SkipKey) -> None:
        """Count that a skip was applied, until `pop` returns the count."""
        self._applied[key] += 1

    def pop(self, key: SkipKey) -> tuple[Skip, int]:
        """Remove an own skip; return the skip and how often it was applied."""
        return self._own.pop(key).skip, self._applied.pop(key, 0)

    @property
    def surplus_key(self) -> SkipKey | None:
        """Return the oldest own skip's key if there is no room for another, or None."""
        return next(iter(self._own)) if len(self._own) >= self._limit else None

    def keys_answered_by(self, moment: float) -> list[SkipKey]:
        """List the keys of own skips whose reports the server had answered by then."""
        return [key for key, own in self._own.items() if own.was_known_at(moment)]

    def overdue_key(self, now: float, *, current_since: float) -> SkipKey | None:
        """Return the key of an own skip that the server's list has lacked for long.

        That is OWN_FOR seconds; None without such a skip.
        """
        oldest = next(iter(self._own.items()), None)
        if oldest is None or max(oldest[1].since, current_since) + OWN_FOR > now:
            return None
        return oldest[0]
