"""Read brokers, with how many topics each carries, and ask one for its topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, QuerySet

from apps.api.keyset_pagination import Page, PageWindow
from apps.brokers import adapters, ping_and_discovery
from apps.brokers.adapter_contract import Capabilities, FoundTopic
from apps.brokers.models import Broker, Topic
from apps.core.errors import Absent, Unavailable
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerDetail:
    """A broker and how many topics it carries.

    `capabilities` is None where the client library of its kind is not installed.
    """

    broker: Broker
    topics: int
    capabilities: Capabilities | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscoveredTopic:
    """A topic that a broker has; `name` is that of its row here, None without one."""

    topic: FoundTopic
    name: str | None


def find(
    window: PageWindow, principal: Principal
) -> tuple[Page[Broker], list[BrokerDetail]]:
    rows = _visible_brokers(principal).order_by("pk")
    page = window.page(rows)
    return page, _details(page.rows)


def one(broker_id: int, principal: Principal) -> BrokerDetail:
    """Return a broker with its number of topics, and what its kind can do.

    Raises Absent if the principal sees no such broker.
    """
    return detail_of(visible(broker_id, principal))


def detail_of(broker: Broker) -> BrokerDetail:
    return _details([broker])[0]


def visible(broker_id: int, principal: Principal) -> Broker:
    """Find a broker; raises Absent if none has this id or the principal sees none."""
    broker = _visible_brokers(principal).filter(pk=broker_id).first()
    if broker is None:
        raise Absent(f"There is no broker {broker_id} here.")
    return broker


def _visible_brokers(principal: Principal) -> QuerySet[Broker]:
    """Give all brokers; to a key for some topics, those that carry any of them."""
    if principal.sees_every_topic:
        return Broker.objects.all()
    visible_topics = Topic.objects.matching(principal.topics)
    return Broker.objects.filter(pk__in=visible_topics.values("broker"))


def discover(broker_id: int, principal: Principal) -> list[DiscoveredTopic]:
    """List those topics at a broker that a principal may see, by asking the broker.

    Raises Unavailable or Refused with the broker's text.
    """
    broker = visible(broker_id, principal)
    names = dict(broker.topics.values_list("native_name", "name"))
    return [
        DiscoveredTopic(topic=topic, name=names.get(topic.name))
        for topic in ping_and_discovery.discover(broker=broker)
        if principal.sees(topic.name)
    ]


def _details(brokers: Sequence[Broker]) -> list[BrokerDetail]:
    """Return each broker with its number of topics, and what its kind can do."""
    counted = Topic.objects.filter(broker__in=brokers).values_list("broker")
    topic_counts = dict(counted.annotate(number=Count("pk")).order_by())
    return [
        BrokerDetail(
            broker=broker,
            topics=topic_counts.get(broker.pk, 0),
            capabilities=_capabilities(broker.kind),
        )
        for broker in brokers
    ]


def _capabilities(kind: str) -> Capabilities | None:
    """Return what a kind of broker can do; None if its client is not installed."""
    try:
        return adapters.adapter(kind).capabilities
    except Unavailable:
        return None  # its client library is not installed
