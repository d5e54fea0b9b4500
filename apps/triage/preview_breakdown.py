"""What a preview shows of its messages, counted once: when its items are taken.

It is stored with the operation, so that no page reads a million items again. Of each
property the largest values are kept, and the others are added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

# Values of a property, and topics whose ids are known.
MOST_KEPT = 100
MOST_TOPICS = 1_000

Shares = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Largest:
    """The largest values of a property with their numbers of items, largest first.

    `others` counts the items that have none of these values.
    """

    values: Shares = ()
    others: int = 0

    @classmethod
    def of(cls, numbers: Counter[str]) -> Self:
        """Select the largest groups of a preview's items; add up all others.

        Equal ones are in order of their names.
        """
        ranked = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))
        return cls(
            values=tuple(ranked[:MOST_KEPT]),
            others=sum(number for _, number in ranked[MOST_KEPT:]),
        )

    @property
    def is_one_group(self) -> bool:
        """Tell whether all items of the preview are in one group."""
        return len(self.values) == 1 and not self.others

    @classmethod
    def from_json(cls, stored: Sequence[Any]) -> Self:
        """Read a preview's largest groups of items, as `to_json` wrote them."""
        values, others = stored
        return cls(
            values=tuple((name, number) for name, number in values), others=others
        )

    def to_json(self) -> list[Any]:
        """Return the groups of items as a list that JSON can hold."""
        return [[list(pair) for pair in self.values], self.others]

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return a preview's largest groups of items under other names.

        A group that `names` lacks keeps its name.
        """
        values = tuple((names.get(name, name), number) for name, number in self.values)
        return type(self)(values=values, others=self.others)


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemBreakdown:
    """The items of an operation by what its preview shows of them.

    All but `skipped`, which is by reason, are about items that are not skipped.
    `groups` are those of another kind than poisons, which has no other member.
    `topics` is by id; `topic_ids` has all of them, None if there are too many. `first`
    has the poisons that come first, `samples` some that differ. `left_out` is None
    where counting took too long.
    """

    skipped: Largest = Largest()
    topics: Largest = Largest()
    consumers: Largest = Largest()
    states: Largest = Largest()
    ages: Largest = Largest()
    topic_ids: tuple[int, ...] | None = ()
    first: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    left_out: Shares | None = ()
    groups: tuple[tuple[str, Largest], ...] = ()

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read the breakdown of items that `to_json` wrote."""
        ids, left_out = stored["topic_ids"], stored["left_out"]
        return cls(
            skipped=Largest.from_json(stored["skipped"]),
            topics=Largest.from_json(stored["topics"]),
            consumers=Largest.from_json(stored["consumers"]),
            states=Largest.from_json(stored["states"]),
            ages=Largest.from_json(stored["ages"]),
            topic_ids=None if ids is None else tuple(ids),
            first=tuple(stored["first"]),
            samples=tuple(stored["samples"]),
            left_out=None if left_out is None else _shares(left_out),
            groups=tuple(
                (title, Largest.from_json(largest))
                for title, largest in stored.get("groups", ())
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the breakdown of items as JSON: some kilobytes for each property."""
        return {
            "skipped": self.skipped.to_json(),
            "topics": self.topics.to_json(),
            "consumers": self.consumers.to_json(),
            "states": self.states.to_json(),
            "ages": self.ages.to_json(),
            "topic_ids": None if self.topic_ids is None else list(self.topic_ids),
            "first": list(self.first),
            "samples": list(self.samples),
            "left_out": None
            if self.left_out is None
            else [list(pair) for pair in self.left_out],
            "groups": [[title, largest.to_json()] for title, largest in self.groups],
        }


def _shares(pairs: Sequence[Any]) -> Shares:
    return tuple((name, number) for name, number in pairs)
