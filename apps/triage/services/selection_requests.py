"""What an operation is asked to act on, where to send it, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from apps.core.errors import Invalid
from apps.poison.query_language import Query
from apps.triage.models import Operation
from apps.triage.operation_states import PACED, SENDS, VERBS, ItemKindName, Verb
from apps.triage.ramps import Ramp
from apps.triage.services.pacing import require_rate

MOST_IDS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionRequest:
    """A requested verb and its items, chosen in exactly one of five ways.

    All poisons that match a query; some by their ids; all that an operation dropped; or
    those of an operation that have one of these `standings`, to be sent again. Items of
    another `kind`: all that match `filters`, in the words of that kind.
    `ordered`: send the messages of each topic one after the other, as captured.
    `rate` is the highest number of messages a second.
    """

    verb: Verb
    kind: ItemKindName = ItemKindName.POISON
    query: Query | None = None
    filters: str | None = None
    ids: tuple[int, ...] = ()
    dropped_by: int | None = None
    retry_of: int | None = None
    standings: tuple[str, ...] = ()
    target_topic: str | None = None
    ordered: bool = False
    rate: int | None = None
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        self._require_one_way()
        if self.verb not in VERBS[self.kind]:
            raise Invalid("verb", f"give one of {', '.join(VERBS[self.kind])}")
        self._require_route()
        if (self.kind, self.verb) not in PACED and self.rate is not None:
            raise Invalid("rate", "only what is sent or tried has a rate")
        if self.verb.value not in SENDS and self.ramp is not None:
            raise Invalid("ramp", "only a redrive has a ramp")
        require_rate(self.rate)

    @property
    def stored_query(self) -> str | None:
        """Return the query that an operation stores; None if its items were picked."""
        return self.filters if self.query is None else str(self.query)

    def _require_one_way(self) -> None:
        ways = [
            self.query is not None,
            bool(self.ids),
            self.dropped_by is not None,
            self.retry_of is not None,
            self.filters is not None,
        ]
        if sum(ways) != 1:
            raise Invalid("q", "give either a query or ids, and at least one id")
        if (self.filters is None) != (self.kind is ItemKindName.POISON):
            raise Invalid("q", "messages are chosen by a query or ids, others are not")
        if len(self.ids) > MOST_IDS:
            raise Invalid("ids", f"give at most {MOST_IDS} ids, or a query")

    def _require_route(self) -> None:
        if self.target_topic and self.verb.value not in SENDS:
            raise Invalid("target_topic", "only a redrive goes to another topic")
        if self.verb is Verb.GIVE_BACK and not self.target_topic:
            raise Invalid(
                "target_topic",
                "name the topic whose dead-letter queue gets its messages again",
            )
        if self.ordered and self.verb is not Verb.REDRIVE:
            raise Invalid("ordered", "only a redrive can keep an order")


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How messages are sent: to another topic (None: to their own), and in order."""

    target_topic: str | None = None
    ordered: bool = False

    @classmethod
    def of(cls, operation: Operation) -> Self:
        """Return the route that an operation was previewed with."""
        topic = operation.target_topic
        name = None if topic is None else topic.name
        return cls(target_topic=name, ordered=operation.ordered)


@dataclass(frozen=True, kw_only=True, slots=True)
class SendLimits:
    """How fast messages are sent: at most so many a second, and by which ramp."""

    rate: int | None = None
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        require_rate(self.rate)

    @classmethod
    def of(cls, operation: Operation) -> Self:
        """Return the limits that an operation was previewed with."""
        ramp = Ramp.from_json(operation.ramp) if operation.ramp else None
        return cls(rate=operation.rate, ramp=ramp)
