"""Register topics with a broker, and change their policies and lanes in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import (
    refuse_taken,
    register_topic,
)
from apps.brokers.topic_policies import Policies, set_policies
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.models import Mode
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.core.text_cleaning import is_name
from apps.team.rights import Principal, Scope
from poisonguard.contract import NAME_LIMIT


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneChange:
    """The change of a lane; None leaves a field as it is."""

    mode: Mode | None
    tee_queue: str
    paused: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicChange:
    """The change of a topic, given by its name: its policies, and its lane.

    `broker` is a name, and `native_name` the broker's own for the topic.
    """

    name: str
    broker: str | None = None
    native_name: str | None = None
    policies: Mapping[str, object]
    lane: LaneChange
    reason: str


@transaction.atomic
def register(*, change: TopicChange, principal: Principal, now: datetime) -> Topic:
    """Register a topic with its broker; a topic known without a broker gets this one.

    Its dead-letter queue is that of its kind's convention, unless the change names one
    or none. Raises Refused where a broker carries it already.
    """
    principal.require(Scope.BROKERS_WRITE)
    if not is_name(change.name, limit=NAME_LIMIT):
        remedy = "use characters that can be seen, without a blank at either end"
        raise Invalid("name", remedy)
    for name in (change.name, change.native_name or change.name):
        if not principal.sees(name):
            raise Forbidden(f"This key is not for the topic {name}.")
    broker = _broker_named(change.broker or "")
    native_name = change.native_name or change.name
    refuse_taken(name=change.name, native_name=native_name, broker=broker)
    if Topic.objects.filter(name=change.name, broker=broker).exists():
        # Registering it again must not reset its policies: PATCH changes them.
        raise Refused(
            f"The topic {change.name} is known already: change it with PATCH."
        )
    has_queue = "dead_letter_queue" in change.policies
    register_topic(
        name=change.name,
        broker=broker,
        dead_letter_queue="" if has_queue else None,
        policy={},
        native_name=native_name,
        actor=principal.actor,
        principal=principal,
        now=now,
    )
    return _alter(change, principal, now=now)


@transaction.atomic
def alter(*, change: TopicChange, principal: Principal, now: datetime) -> Topic:
    """Change given policies of a topic and its lane, all or none; return the topic."""
    principal.require(Scope.BROKERS_WRITE)
    return _alter(change, principal, now=now)


def visible_topic(*, name: str, principal: Principal) -> Topic:
    """Find a topic that this principal may see; raises Absent otherwise."""
    visible = Topic.objects.matching(principal.topics)
    topic = visible.select_related("broker", "lane").filter(name=name).first()
    if topic is None:
        raise Absent(f"There is no topic {name} here.")
    return topic


def _alter(change: TopicChange, principal: Principal, *, now: datetime) -> Topic:
    """Change a topic's policies, and its lane's mode and pause; return the topic."""
    topic = visible_topic(name=change.name, principal=principal)
    topic = set_policies(
        topic=topic,
        policies=Policies.of(topic).changed(change.policies),
        reason=change.reason,
        principal=principal,
        now=now,
    )
    if change.lane.mode is not None:
        lane_mode_and_pause.set_mode(
            topic=topic,
            mode=change.lane.mode,
            tee_queue=change.lane.tee_queue,
            reason=change.reason,
            principal=principal,
            now=now,
        )
    if change.lane.paused is not None:
        act = (
            lane_mode_and_pause.pause
            if change.lane.paused
            else lane_mode_and_pause.resume
        )
        act(topic=topic, reason=change.reason, principal=principal, now=now)
    return visible_topic(name=change.name, principal=principal)


def _broker_named(name: str) -> Broker:
    """Find a broker by name; raise Invalid without one."""
    broker = Broker.objects.filter(name=name).first()
    if broker is None:
        raise Invalid("broker", f"there is no broker {name} here")
    return broker
