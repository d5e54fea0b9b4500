"""Brokers as the API tells of them, and what is done to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, QuerySet

from apps.api.paging import Page, Place, Window
from apps.api.parameters.brokers import BrokerChange, NewBroker
from apps.brokers import adapters, connectivity
from apps.brokers.models import Broker, Topic
from apps.brokers.ports import Capabilities, FoundTopic
from apps.brokers.services import registration
from apps.core.errors import Absent, Unavailable
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerSeen:
    """A broker, with how many topics it carries; None where its client is missing."""

    broker: Broker
    topics: int
    capabilities: Capabilities | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A topic that a broker has, and the name it is known by here, if it is."""

    found: FoundTopic
    name: str | None


def find(window: Window, principal: Principal) -> tuple[Page[Broker], list[BrokerSeen]]:
    rows = _visible(principal).order_by("pk")
    if window.after:
        rows = rows.filter(pk__gt=window.after.pk)
    page = window.cut(rows, lambda row: Place(pk=row.pk))
    return page, _seen(page.rows)


def one(broker_id: int, principal: Principal) -> BrokerSeen:
    return _seen([visible(broker_id, principal)])[0]


def visible(broker_id: int, principal: Principal) -> Broker:
    """Give a broker; raises Absent if this principal may not see it, or it is none."""
    broker = _visible(principal).filter(pk=broker_id).first()
    if broker is None:
        raise Absent(f"There is no broker {broker_id} here.")
    return broker


def _visible(principal: Principal) -> QuerySet[Broker]:
    """Give all brokers, to a key of some topics those that carry any of these."""
    if principal.sees_every_topic:
        return Broker.objects.all()
    mine = Topic.objects.matching(principal.topics)
    return Broker.objects.filter(pk__in=mine.values("broker"))


def add(new: NewBroker, principal: Principal, *, now: datetime) -> BrokerSeen:
    broker = registration.add(
        name=new.name,
        kind=new.kind,
        url=new.url,
        options=new.options,
        principal=principal,
        now=now,
    )
    return _seen([broker])[0]


def alter(
    broker_id: int, change: BrokerChange, principal: Principal, *, now: datetime
) -> BrokerSeen:
    broker = registration.alter(
        broker=registration.one(broker_id=broker_id),
        name=change.name,
        url=change.url,
        options=change.options,
        principal=principal,
        now=now,
    )
    return _seen([broker])[0]


def discovered(broker_id: int, principal: Principal) -> list[Found]:
    """Ask a broker what it has; raises Unavailable or Refused in its own words."""
    broker = visible(broker_id, principal)
    known = dict(broker.topics.values_list("native_name", "name"))
    return [
        Found(found=found, name=known.get(found.name))
        for found in connectivity.discover(broker=broker)
        if principal.sees(found.name)
    ]


def _seen(brokers: Sequence[Broker]) -> list[BrokerSeen]:
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
