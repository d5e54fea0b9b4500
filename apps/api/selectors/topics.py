"""Topics as the API tells of them, and what is done to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.api.paging import Page, Place, Window
from apps.api.parameters.topics import TopicChange, TopicsWanted
from apps.brokers.models import Broker, Topic
from apps.brokers.policies import Policies, set_policies
from apps.brokers.services.topics import register_topic
from apps.capture.lanes import lane_settings
from apps.capture.models import HeldDeadLetter, Lane, OversizeMessage
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.team.rights import Principal, Scope


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSeen:
    topic: Topic
    lane: Lane | None
    held: int
    oversize: int


def find(
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
    return page, _seen(page.rows)


def one(name: str, principal: Principal) -> TopicSeen:
    """Find a topic that this principal may see; raises Absent otherwise."""
    return _seen([_topic_named(name, principal)])[0]


def register(change: TopicChange, principal: Principal, *, now: datetime) -> TopicSeen:
    """Make a topic known with its broker; one known without a broker gets it.

    Its dead-letter queue is that of its kind's convention, unless the change names one
    or none. Raises Refused where another broker carries it.
    """
    principal.require(Scope.BROKERS_WRITE)
    for name in (change.name, change.native_name or change.name):
        if not principal.sees(name):
            raise Forbidden(f"This key is not for the topic {name}.")
    broker = _broker_named(change.broker or "")
    _refuse_taken(change, broker)
    is_named = "dead_letter_queue" in change.policies
    register_topic(
        name=change.name,
        broker=broker,
        dead_letter_queue="" if is_named else None,
        policy={},
        native_name=change.native_name or change.name,
        actor=principal.actor,
        principal=principal,
        now=now,
    )
    return alter(change, principal, now=now)


def alter(change: TopicChange, principal: Principal, *, now: datetime) -> TopicSeen:
    """Change the policies that are told, then what the lane does."""
    principal.require(Scope.BROKERS_WRITE)
    topic = _topic_named(change.name, principal)
    topic = set_policies(
        topic=topic,
        policies=Policies.of(topic).changed(change.policies),
        reason=change.reason,
        principal=principal,
        now=now,
    )
    if change.lane.mode is not None:
        lane_settings.set_mode(
            topic=topic,
            mode=change.lane.mode,
            tee_queue=change.lane.tee_queue,
            reason=change.reason,
            principal=principal,
            now=now,
        )
    if change.lane.paused is not None:
        act = lane_settings.pause if change.lane.paused else lane_settings.resume
        act(topic=topic, reason=change.reason, principal=principal, now=now)
    return one(change.name, principal)


def _topic_named(name: str, principal: Principal) -> Topic:
    """Find a topic that this principal may see; raises Absent otherwise."""
    visible = Topic.objects.matching(principal.topics)
    topic = visible.select_related("broker", "lane").filter(name=name).first()
    if topic is None:
        raise Absent(f"There is no topic {name} here.")
    return topic


def _broker_named(name: str) -> Broker:
    broker = Broker.objects.filter(name=name).first()
    if broker is None:
        raise Invalid("broker", f"there is no broker {name} here")
    return broker


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


def _seen(topics: Sequence[Topic]) -> list[TopicSeen]:
    held, oversize = (
        Counter(model.objects.filter(topic__in=topics).values_list("topic", flat=True))
        for model in (HeldDeadLetter, OversizeMessage)
    )
    return [
        TopicSeen(
            topic=topic,
            lane=getattr(topic, "lane", None),
            held=held[topic.pk],
            oversize=oversize[topic.pk],
        )
        for topic in topics
    ]
