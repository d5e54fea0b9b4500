"""The data of the broker pages: address, capabilities, topics and lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Prefetch
from django.template.defaultfilters import filesizeformat

from apps.brokers import adapters, ping_and_discovery, sealed_addresses
from apps.brokers.adapter_contract import (
    Capabilities,
    Counting,
    FoundTopic,
    Headers,
    Ordering,
)
from apps.brokers.adapters import BrokerKind
from apps.brokers.models import Broker, Topic
from apps.brokers.services import broker_registration
from apps.brokers.services.topics_and_routing_publisher import Convention, convention_of
from apps.brokers.topic_querysets import TopicQuerySet
from apps.capture.models import LaneState
from apps.core.errors import Refused, Unavailable
from apps.core.hashed_ids import digest_of, raw
from apps.core.text_cleaning import readable
from apps.dashboard.selectors.consumer_positions import lane_state
from apps.team.rights import Principal

MOST_TOPICS = 200
MOST_FOUND = 500
# The state of a broker is that of its worst lane.
WORST_FIRST = (
    *(LaneState.AWAY, LaneState.MISSING, LaneState.HOLDING, "silent"),
    *(LaneState.PAUSED, LaneState.OFF, LaneState.EXPECTED, LaneState.RUNNING),
)
_CHANGED = (
    "The dead-letter queues that are not watched yet are not those that you looked at"
    " any more: nothing was done, and this is the list now."
)

Capability = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerTopic:
    """A topic, with the state of its lane; "" where it has none."""

    topic: Topic
    lane_state: str

    @property
    def mode(self) -> str:
        """Return the mode of the topic's lane; "" without a lane."""
        return str(self.topic.lane.mode) if self.lane_state else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerRow:
    broker: Broker
    topics: list[BrokerTopic]

    @property
    def title(self) -> str:
        return adapters.title_of(self.broker.kind)

    @property
    def address(self) -> str:
        return sealed_addresses.storage_of(self.broker.url)

    @property
    def lanes(self) -> dict[str, int]:
        """Count the broker's lanes by state, the worst state first."""
        numbers = Counter(
            broker_topic.lane_state
            for broker_topic in self.topics
            if broker_topic.lane_state
        )
        states = sorted(numbers, key=_severity)
        return {state: numbers[state] for state in states}

    @property
    def state(self) -> str:
        """Return the state of the broker's worst lane, or "none"."""
        return next(iter(self.lanes), "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerPage:
    """What a kind of broker can do; `missing` says that its client is not installed."""

    row: BrokerRow
    capabilities: list[Capability]
    missing: str

    @property
    def first_topics(self) -> list[BrokerTopic]:
        """Return the broker's topics to show, up to a limit."""
        return self.row.topics[:MOST_TOPICS]


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedKind:
    """A kind of broker; if its client is missing, `remedy` says how to install it."""

    kind: BrokerKind
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedTopic:
    """A topic at the broker; `mark` identifies it in a form, whatever its name is.

    `convention` names the dead-letter queue to use where the broker has none.
    """

    topic: FoundTopic
    registered: BrokerTopic | None
    convention: Convention
    is_keepable: bool

    @property
    def mark(self) -> str:
        """Return the value of a discovered topic's checkbox: a digest of its name."""
        return mark_of(self.topic)

    @property
    def may_be_chosen(self) -> bool:
        """Tell whether choosing a discovered topic registers it, or gives it a lane."""
        queue = self.topic.dead_letter_queue or self.convention.queue
        is_idle = self.registered is None or (not self.mode and bool(queue))
        return self.is_keepable and is_idle

    @property
    def is_new(self) -> bool:
        """Tell whether a discovered topic has a dead-letter queue, but no lane yet.

        False for one that cannot be registered because of its name.
        """
        has_queue = bool(self.topic.dead_letter_queue)
        return self.is_keepable and has_queue and not (self.registered and self.mode)

    @property
    def mode(self) -> str:
        """Return the mode of the discovered topic's lane; "" without a lane."""
        return self.registered.mode if self.registered else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovery:
    """The topics of a broker; `rows` are the first whose name contains the search.

    `mark` identifies those that are new. `peeks`: observing shows samples and the age
    of the oldest message.
    """

    rows: list[OfferedTopic]
    matching: int
    number: int
    new: int
    mark: str
    peeks: bool


def find(principal: Principal, *, now: datetime) -> list[BrokerRow]:
    """List all brokers, each with the topics and lanes that this principal sees."""
    visible = _visible_topics(principal)
    brokers = Broker.objects.prefetch_related(Prefetch("topics", visible))
    return [
        _broker_row(broker, now=now) for broker in brokers.order_by("is_sample", "name")
    ]


def one(broker_id: int, principal: Principal, *, now: datetime) -> BrokerPage:
    """Load a broker for its page, with topics and capabilities; raises Absent."""
    broker = broker_registration.one(broker_id=broker_id)
    topics = _visible_topics(principal).filter(broker=broker)
    row = BrokerRow(broker=broker, topics=[_broker_topic(t, now=now) for t in topics])
    try:
        described, missing = describe(adapters.adapter(broker.kind).capabilities), ""
    except Unavailable as client:
        described, missing = [], str(client)
    return BrokerPage(row=row, capabilities=described, missing=missing)


def offered_kinds() -> list[OfferedKind]:
    """List the kinds of brokers that can be added, and what a kind still lacks."""
    return [
        OfferedKind(kind=kind, remedy=adapters.missing_client(kind.name))
        for kind in adapters.KINDS.values()
    ]


def mark_of(topic: FoundTopic) -> str:
    """Return the value of a topic's checkbox: a digest, for a name of any bytes."""
    return digest_of(raw(topic.name)).hex()[:32]


def discover_topics(
    broker: Broker, name: str, principal: Principal, *, now: datetime
) -> Discovery:
    """List the topics that a broker reports, with their lanes in Poisonweb.

    Lists only topics that the principal sees, and whose name contains `name`. Raises
    Unavailable or Refused with the broker's message.
    """
    rows = _discovered_topics(broker, principal, now=now)
    new = [row.topic for row in rows if row.is_new]
    matching = [row for row in rows if _has_in_name(row.topic, name)]
    return Discovery(
        rows=matching[:MOST_FOUND],
        matching=len(matching),
        number=len(rows),
        new=len(new),
        mark=_mark_of_all(new),
        peeks=adapters.adapter(broker.kind).capabilities.peeks,
    )


def topics_to_observe(
    broker: Broker, marks: Iterable[str], principal: Principal, *, now: datetime
) -> list[FoundTopic]:
    """Ask a broker for its topics; return those with these marks.

    Topics that the principal does not see, or that cannot be registered because of
    their names, are left out.
    """
    chosen_marks = frozenset(marks)
    rows = _discovered_topics(broker, principal, now=now)
    return [row.topic for row in rows if row.is_keepable and row.mark in chosen_marks]


def all_new(
    broker: Broker, mark: str, principal: Principal, *, now: datetime
) -> list[FoundTopic]:
    """Ask a broker for its topics; return all that are new, or [] if none is.

    Raises Refused if they are not those that a page with this mark showed.
    """
    rows = _discovered_topics(broker, principal, now=now)
    new = [row.topic for row in rows if row.is_new]
    if new and _mark_of_all(new) != mark:
        raise Refused(_CHANGED)
    return new


def describe(capabilities: Capabilities) -> list[Capability]:
    """Describe the capabilities of a kind of broker, as label and text."""
    return [
        ("Largest message", _size_limit(capabilities)),
        ("Headers", _headers(capabilities)),
        ("Headers never sent", _reserved(capabilities)),
        ("Order", ORDERING[capabilities.ordering]),
        (
            "A confirmation means",
            f"the message is {DURABILITY[capabilities.durability.value]}",
        ),
        ("Same message twice", _duplicate_window(capabilities.dedupe_window)),
        ("Delayed delivery", _delivery_delay(capabilities.delay)),
        ("Waiting for dead letters", _polling_cost(capabilities.polling_interval)),
        ("Looking at dead letters", _either_text(capabilities.peeks, PEEKS)),
        ("Keeping them hidden for longer", _either_text(capabilities.extends, EXTENDS)),
        ("Dequeue count", COUNTING[capabilities.counting]),
        (
            "Dead-lettering",
            _either_text(capabilities.dead_letters_itself, DEAD_LETTERS),
        ),
        ("Deliveries", _either_text(capabilities.delivered, DELIVERED)),
    ]


ORDERING: Mapping[Ordering, str] = {
    Ordering.NONE: "not kept",
    Ordering.KEY: "kept among messages of one key",
    Ordering.TOPIC: "kept in all of a topic",
}
DURABILITY = {
    "fsynced": "on its disk",
    "replicated": "on more than one machine",
    "page cache": "in its memory, and soon on its disk",
}
COUNTING: Mapping[Counting, str] = {
    Counting.BROKER: "reported by the broker",
    Counting.POLICY: "not reported: assumed to be the topic's max dequeue count",
    Counting.NONE: "not known",
}
PEEKS = ("changes nothing", "not possible without changing them")
EXTENDS = ("possible", "not needed, or not possible")
DEAD_LETTERS = ("the broker does it itself", "a lane does it, by the topic's limits")
DELIVERED = ("counted by the broker", "not counted by the broker")


def _size_limit(capabilities: Capabilities) -> str:
    """Describe the largest message that a broker takes."""
    of = "body and headers together" if capabilities.counts_headers else "of body"
    return f"{filesizeformat(capabilities.max_message)} {of}".replace("\xa0", " ")


def _headers(capabilities: Capabilities) -> str:
    """Describe which message headers a broker stores, and how many."""
    if capabilities.headers is Headers.NONE:
        return "none: a requeued message cannot be marked as requeued"
    kind = "of any bytes" if capabilities.headers is Headers.BYTES else "of text"
    most = (
        ""
        if capabilities.most_headers is None
        else f", at most {capabilities.most_headers:,}"
    )
    return kind + most


def _reserved(capabilities: Capabilities) -> str:
    """Write for the broker page which headers a requeue to the broker leaves out."""
    names = sorted(readable(name) for name in capabilities.reserved)
    return ", ".join(names) or "none"


def _duplicate_window(seconds: float) -> str:
    """Describe for the broker page within what time a broker notices duplicates."""
    return f"found within {_duration_words(seconds)}" if seconds else "not noticed"


def _delivery_delay(seconds: float) -> str:
    """Describe how long a producer can delay a message."""
    if not seconds:
        return "none"
    most = _duration_words(seconds)
    return f"up to {most}, for its producers; requeued messages are sent at once"


def _polling_cost(longest: float) -> str:
    """Describe for the broker page what polls for dead letters cost.

    Where they cost something, it also says how far apart they get.
    """
    if not longest:
        return "costs nothing"
    return (
        "each look is a paid request: while there are no dead letters, looks become "
        f"less frequent, up to {_duration_words(longest)} apart"
    )


def _duration_words(seconds: float) -> str:
    """Write seconds in words: 7200 is "2 hours", 3600 is "60 minutes"."""
    whole = round(seconds)
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if whole > size and whole % size == 0:
            return f"{whole // size} {unit}"
    return f"{seconds:g} seconds"


def _either_text(is_true: bool, texts: tuple[str, str]) -> str:  # noqa: FBT001 - a fact
    """Return the first text if a broker can do something, the second otherwise."""
    return texts[0] if is_true else texts[1]


def _visible_topics(principal: Principal) -> TopicQuerySet:
    """Return the topics that this principal sees, with lanes and brokers."""
    topics = Topic.objects.matching(principal.topics)
    return topics.select_related("lane", "broker").order_by("name")


def _broker_row(broker: Broker, *, now: datetime) -> BrokerRow:
    """Build the row of a broker, with its topics."""
    topics = [_broker_topic(topic, now=now) for topic in broker.topics.all()]
    return BrokerRow(broker=broker, topics=topics)


def _broker_topic(topic: Topic, *, now: datetime) -> BrokerTopic:
    """Pair a topic with the state of its lane."""
    has_lane = hasattr(topic, "lane") and topic.dead_letter_queue != ""
    return BrokerTopic(
        topic=topic, lane_state=lane_state(topic.lane, now=now) if has_lane else ""
    )


def _discovered_topics(
    broker: Broker, principal: Principal, *, now: datetime
) -> list[OfferedTopic]:
    """Ask a broker for its topics; list those that the principal sees."""
    broker_topics = [
        t for t in ping_and_discovery.discover(broker=broker) if principal.sees(t.name)
    ]
    registered = {
        topic.native_name: _broker_topic(topic, now=now)
        for topic in _visible_topics(principal).filter(broker=broker)
    }
    return [
        _discovered_topic(broker, each, registered.get(each.name))
        for each in broker_topics
    ]


def _mark_of_all(topics: Iterable[FoundTopic]) -> str:
    """Return a digest of topics with their dead-letter queues, in whatever order."""
    pairs = sorted(
        digest_of(raw(each.name), raw(each.dead_letter_queue)) for each in topics
    )
    return digest_of(*pairs).hex()


def _discovered_topic(
    broker: Broker, topic: FoundTopic, registered: BrokerTopic | None
) -> OfferedTopic:
    """Pair a topic at the broker with its registration in Poisonweb, if any."""
    return OfferedTopic(
        topic=topic,
        registered=registered,
        convention=convention_of(kind=broker.kind, topic=topic.name),
        is_keepable=broker_registration.is_keepable(topic),
    )


def _has_in_name(topic: FoundTopic, name: str) -> bool:
    """Tell whether a discovered topic's name contains the searched text."""
    return name.lower() in topic.name.lower()


def _severity(state: str) -> int:
    """Return the place of a lane's state in the order from the worst."""
    return WORST_FIRST.index(state) if state in WORST_FIRST else 0
