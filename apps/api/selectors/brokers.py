"""Brokers and topics as the API tells of them, and what is done to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from apps.api import brokers as asked
from apps.api.brokers import BrokerChange, NewBroker, TopicChange, TopicsWanted
from apps.api.paging import Page, Place, Window
from apps.brokers import adapters, reaching, registering
from apps.brokers.models import Broker, Topic
from apps.brokers.policies import Policies, set_policies
from apps.brokers.ports import Capabilities, FoundTopic
from apps.brokers.services import register_topic
from apps.capture import watching
from apps.capture.models import HeldDeadLetter, Lane
from apps.core.errors import Forbidden, Refused, Unavailable
from apps.team.rights import Principal, Scope


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerSeen:
    """A broker, with how many topics it carries; None where its client is missing."""

    broker: Broker
    topics: int
    capabilities: Capabilities | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSeen:
    topic: Topic
    lane: Lane | None
    held: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A topic that a broker has, and the name it is known by here, if it is."""

    found: FoundTopic
    name: str | None


def find(window: Window) -> tuple[Page[Broker], list[BrokerSeen]]:
    rows = Broker.objects.order_by("pk")
    if window.after:
        rows = rows.filter(pk__gt=window.after.pk)
    page = window.cut(rows, lambda row: Place(pk=row.pk))
    return page, _brokers(page.rows)


def one(broker_id: int) -> BrokerSeen:
    return _brokers([registering.one(broker_id=broker_id)])[0]


def add(new: NewBroker, principal: Principal, *, now: datetime) -> BrokerSeen:
    broker = registering.add(
        name=new.name,
        kind=new.kind,
        url=new.url,
        options=new.options,
        principal=principal,
        now=now,
    )
    return _brokers([broker])[0]


def alter(
    broker_id: int, change: BrokerChange, principal: Principal, *, now: datetime
) -> BrokerSeen:
    broker = registering.alter(
        broker=registering.one(broker_id=broker_id),
        name=change.name,
        url=change.url,
        options=change.options,
        principal=principal,
        now=now,
    )
    return _brokers([broker])[0]


def discovered(broker_id: int, principal: Principal) -> list[Found]:
    """Ask a broker what it has; raises Unavailable or Refused in its own words."""
    broker = registering.one(broker_id=broker_id)
    known = dict(broker.topics.values_list("native_name", "name"))
    return [
        Found(found=found, name=known.get(found.name))
        for found in reaching.discover(broker=broker)
        if principal.sees(found.name)
    ]


def find_topics(
    window: Window, wanted: TopicsWanted, principal: Principal
) -> tuple[Page[Topic], list[TopicSeen]]:
    rows = Topic.objects.matching(principal.topics)
    if wanted.topic is not None:
        rows = rows.filter(name=wanted.topic)
    if wanted.broker is not None:
        rows = rows.filter(broker__name=wanted.broker)
    if window.after:
        rows = rows.filter(pk__gt=window.after.pk)
    rows = rows.select_related("broker", "lane").order_by("pk")
    page = window.cut(rows, lambda row: Place(pk=row.pk))
    return page, _topics(page.rows)


def one_topic(name: str, principal: Principal) -> TopicSeen:
    """Find a topic that this principal may see; raises Absent otherwise."""
    return _topics([asked.topic_named(name, principal)])[0]


def register(change: TopicChange, principal: Principal, *, now: datetime) -> TopicSeen:
    """Make a topic known with its broker; one known without a broker gets it.

    Raises Refused where another broker carries it.
    """
    principal.require(Scope.BROKERS_WRITE)
    if not principal.sees(change.name):
        raise Forbidden(f"This key is not for the topic {change.name}.")
    broker = asked.broker_named(change.broker or "")
    _refuse_taken(change, broker)
    register_topic(
        name=change.name,
        broker=broker,
        dead_letter_queue="",
        policy={},
        native_name=change.native_name or change.name,
        actor=principal.actor,
        now=now,
    )
    return alter_topic(change, principal, now=now)


def alter_topic(
    change: TopicChange, principal: Principal, *, now: datetime
) -> TopicSeen:
    """Change the policies that are told, then what the lane does."""
    principal.require(Scope.BROKERS_WRITE)
    topic = asked.topic_named(change.name, principal)
    topic = set_policies(
        topic=topic,
        policies=Policies.of(topic).changed(change.policies),
        reason=change.reason,
        principal=principal,
        now=now,
    )
    if change.lane.mode is not None:
        watching.set_mode(
            topic=topic,
            mode=change.lane.mode,
            tee_queue=change.lane.tee_queue,
            reason=change.reason,
            principal=principal,
            now=now,
        )
    if change.lane.paused is not None:
        act = watching.pause if change.lane.paused else watching.resume
        act(topic=topic, reason=change.reason, principal=principal, now=now)
    return one_topic(change.name, principal)


def _refuse_taken(change: TopicChange, broker: Broker) -> None:
    native = change.native_name or change.name
    same = broker.topics.filter(native_name=native).exclude(name=change.name).first()
    if same is not None:
        raise Refused(f"{broker} has it here already, as {same.name}.")
    known = Topic.objects.filter(name=change.name).exclude(broker=None).first()
    if known is None:
        return
    if known.broker_id != broker.pk:
        raise Refused(f"{known.broker} carries the topic {known.name} already.")
    if known.native_name != native:
        raise Refused(f"The topic {known.name} is {known.native_name} on its broker.")
    # Nothing of it is to be reset by telling of it again: PATCH changes it.
    raise Refused(f"The topic {known.name} is known already: change it with PATCH.")


def _brokers(brokers: Sequence[Broker]) -> list[BrokerSeen]:
    counted = Topic.objects.filter(broker__in=brokers).values_list("broker")
    numbers = dict(counted.annotate(number=Count("pk")).order_by())
    return [
        BrokerSeen(
            broker=broker,
            topics=numbers.get(broker.pk, 0),
            capabilities=_capabilities(broker.kind),
        )
        for broker in brokers
    ]


def _capabilities(kind: str) -> Capabilities | None:
    try:
        return adapters.adapter(kind).capabilities
    except Unavailable:
        return None  # the client is missing, which the answer says


def _topics(topics: Sequence[Topic]) -> list[TopicSeen]:
    held = Counter(
        HeldDeadLetter.objects.filter(topic__in=topics).values_list(
            "topic_id", flat=True
        )
    )
    return [
        TopicSeen(topic=topic, lane=getattr(topic, "lane", None), held=held[topic.pk])
        for topic in topics
    ]
