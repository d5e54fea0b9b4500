"""Brokers as their pages show them: where each is, what it can do, and what it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Prefetch
from django.template.defaultfilters import filesizeformat

from apps.brokers import adapters, connectivity, secrets
from apps.brokers.adapters import BrokerKind
from apps.brokers.models import Broker, Topic
from apps.brokers.ports import Capabilities, Counting, FoundTopic, Headers, Ordering
from apps.brokers.querysets import TopicQuerySet
from apps.brokers.services import registration
from apps.brokers.services.topics import Convention, convention_of
from apps.capture.models import LaneState
from apps.core.errors import Unavailable
from apps.core.ids import digest_of, raw
from apps.core.text import readable
from apps.dashboard.selectors.positions import lane_state
from apps.team.rights import Principal

MOST_TOPICS = 200
MOST_FOUND = 500
# A broker is as its worst lane is.
WORST_FIRST = (
    *(LaneState.AWAY, LaneState.MISSING, LaneState.HOLDING, "silent"),
    *(LaneState.PAUSED, LaneState.OFF, LaneState.EXPECTED, LaneState.RUNNING),
)

Fact = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedTopic:
    """A topic, with the word for how its lane is; "" where it has none."""

    topic: Topic
    lane: str

    @property
    def mode(self) -> str:
        return str(self.topic.lane.mode) if self.lane else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerRow:
    broker: Broker
    topics: list[CarriedTopic]

    @property
    def title(self) -> str:
        return adapters.title_of(self.broker.kind)

    @property
    def address(self) -> str:
        return secrets.described(self.broker.url)

    @property
    def lanes(self) -> dict[str, int]:
        """Count its lanes by how they are, the worst first."""
        numbers = Counter(carried.lane for carried in self.topics if carried.lane)
        words = sorted(numbers, key=_badness)
        return {word: numbers[word] for word in words}

    @property
    def state(self) -> str:
        return next(iter(self.lanes), "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerDetail:
    """`can` is what its kind can do; where its client is missing, `missing` says so."""

    row: BrokerRow
    can: list[Fact]
    missing: str

    @property
    def shown(self) -> list[CarriedTopic]:
        return self.row.topics[:MOST_TOPICS]


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedKind:
    """A kind that can be chosen; not where `remedy` says how to install its client."""

    kind: BrokerKind
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRow:
    """A topic that the broker has; `mark` names it in a form, whatever its name is.

    `convention` tells the dead-letter queue that it has although the broker has none.
    """

    found: FoundTopic
    carried: CarriedTopic | None
    convention: Convention
    is_keepable: bool

    @property
    def mark(self) -> str:
        return mark_of(self.found)

    @property
    def may_be_chosen(self) -> bool:
        """Tell whether choosing it makes it known here, or gives it a lane."""
        queue = self.found.dead_letter_queue or self.convention.queue
        is_idle = self.carried is None or (not self.mode and bool(queue))
        return self.is_keepable and is_idle

    @property
    def is_new(self) -> bool:
        """Tell whether a lane could be made for it that is not there."""
        has_queue = bool(self.found.dead_letter_queue)
        return self.is_keepable and has_queue and not (self.carried and self.mode)

    @property
    def mode(self) -> str:
        return self.carried.mode if self.carried else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovered:
    """What was found: `rows` match the name that was asked for, as far as shown.

    `peeks` tells that samples can be seen, and how old the oldest is.
    """

    rows: list[FoundRow]
    matching: int
    number: int
    new: int
    peeks: bool


def find(principal: Principal, *, now: datetime) -> list[BrokerRow]:
    visible = _visible(principal)
    brokers = Broker.objects.prefetch_related(Prefetch("topics", visible))
    return [_row(broker, now=now) for broker in brokers.order_by("is_sample", "name")]


def one(broker_id: int, principal: Principal, *, now: datetime) -> BrokerDetail:
    broker = registration.one(broker_id=broker_id)
    topics = _visible(principal).filter(broker=broker)
    row = BrokerRow(broker=broker, topics=[_carried(t, now=now) for t in topics])
    try:
        can, missing = facts(adapters.adapter(broker.kind).capabilities), ""
    except Unavailable as client:
        can, missing = [], str(client)
    return BrokerDetail(row=row, can=can, missing=missing)


def offered_kinds() -> list[OfferedKind]:
    return [
        OfferedKind(kind=kind, remedy=adapters.missing_client(kind.name))
        for kind in adapters.KINDS.values()
    ]


def mark_of(found: FoundTopic) -> str:
    return digest_of(raw(found.name)).hex()[:32]


def discovered(
    broker: Broker, name: str, principal: Principal, *, now: datetime
) -> Discovered:
    """Ask a broker what it has; raises Unavailable or Refused in its own words."""
    seen = [t for t in connectivity.discover(broker=broker) if principal.sees(t.name)]
    carried = {
        topic.native_name: _carried(topic, now=now)
        for topic in _visible(principal).filter(broker=broker)
    }
    rows = [_found_row(broker, each, carried.get(each.name)) for each in seen]
    matching = [row for row in rows if _is_asked_for(row.found, name)]
    return Discovered(
        rows=matching[:MOST_FOUND],
        matching=len(matching),
        number=len(rows),
        new=sum(row.is_new for row in rows),
        peeks=adapters.adapter(broker.kind).capabilities.peeks,
    )


def chosen(
    broker: Broker, marks: Iterable[str], principal: Principal, *, everything: bool
) -> list[FoundTopic]:
    """Find again what was chosen: all with a dead-letter queue, or those marked."""
    wanted = frozenset(marks)
    seen = [t for t in connectivity.discover(broker=broker) if principal.sees(t.name)]
    keepable = [each for each in seen if registration.is_keepable(each)]
    if everything:
        return [each for each in keepable if each.dead_letter_queue]
    return [each for each in keepable if mark_of(each) in wanted]


def facts(can: Capabilities) -> list[Fact]:
    """Say in words what a kind of broker can do."""
    return [
        ("Largest message", _size(can)),
        ("Headers", _headers(can)),
        ("Headers never sent", _reserved(can)),
        ("Order", ORDERING[can.ordering]),
        ("A confirmation means", f"the message is {DURABILITY[can.durability.value]}"),
        ("Same message twice", _window(can.dedupe_window)),
        ("Delayed delivery", _delay(can.delay)),
        ("Waiting for dead letters", _waiting(can.polling_interval)),
        ("Looking at dead letters", _yes(can.peeks, PEEKS)),
        ("Keeping them hidden for longer", _yes(can.extends, EXTENDS)),
        ("Dequeue count", COUNTING[can.counting]),
        ("Dead-lettering", _yes(can.dead_letters_itself, DEAD_LETTERS)),
        ("Deliveries", _yes(can.delivered, DELIVERED)),
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
    Counting.BROKER: "told by the broker",
    Counting.POLICY: "not told: taken to be the topic's max dequeue count",
    Counting.NONE: "not known",
}
PEEKS = ("changes nothing", "cannot be done without changing them")
EXTENDS = ("possible", "not needed, or not possible")
DEAD_LETTERS = ("the broker does it itself", "a lane does it, by the topic's limits")
DELIVERED = ("counted by the broker", "not counted by the broker")


def _size(can: Capabilities) -> str:
    of = "body and headers together" if can.counts_headers else "of body"
    return f"{filesizeformat(can.max_message)} {of}".replace("\xa0", " ")


def _headers(can: Capabilities) -> str:
    if can.headers is Headers.NONE:
        return "none: a requeued message carries no mark of it"
    kind = "of any bytes" if can.headers is Headers.BYTES else "of text"
    most = "" if can.most_headers is None else f", at most {can.most_headers:,}"
    return kind + most


def _reserved(can: Capabilities) -> str:
    names = sorted(readable(name) for name in can.reserved)
    return ", ".join(names) or "none"


def _window(seconds: float) -> str:
    return f"found within {_time(seconds)}" if seconds else "not noticed"


def _delay(seconds: float) -> str:
    if not seconds:
        return "none"
    return f"up to {_time(seconds)}, for its producers; what is requeued goes at once"


def _waiting(longest: float) -> str:
    if not longest:
        return "costs nothing"
    return (
        "each look is a request that is paid for: made less and less often while there "
        f"are none, up to {_time(longest)} apart"
    )


def _time(seconds: float) -> str:
    whole = round(seconds)
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if whole > size and whole % size == 0:
            return f"{whole // size} {unit}"
    return f"{seconds:g} seconds"


def _yes(able: bool, words: tuple[str, str]) -> str:  # noqa: FBT001 - a fact
    return words[0] if able else words[1]


def _visible(principal: Principal) -> TopicQuerySet:
    seen = Topic.objects.matching(principal.topics)
    return seen.select_related("lane", "broker").order_by("name")


def _row(broker: Broker, *, now: datetime) -> BrokerRow:
    topics = [_carried(topic, now=now) for topic in broker.topics.all()]
    return BrokerRow(broker=broker, topics=topics)


def _carried(topic: Topic, *, now: datetime) -> CarriedTopic:
    has_lane = hasattr(topic, "lane") and topic.dead_letter_queue != ""
    return CarriedTopic(
        topic=topic, lane=lane_state(topic.lane, now=now) if has_lane else ""
    )


def _found_row(
    broker: Broker, found: FoundTopic, carried: CarriedTopic | None
) -> FoundRow:
    return FoundRow(
        found=found,
        carried=carried,
        convention=convention_of(kind=broker.kind, topic=found.name),
        is_keepable=registration.is_keepable(found),
    )


def _is_asked_for(found: FoundTopic, name: str) -> bool:
    return name.lower() in found.name.lower()


def _badness(word: str) -> int:
    return WORST_FIRST.index(word) if word in WORST_FIRST else 0
