"""Topics and brokers as rows, and one publisher in front of all brokers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import adapters
from apps.brokers.adapters import TopicValues
from apps.brokers.models import Broker, Topic
from apps.brokers.ports import (
    DeadLetterReader,
    Header,
    Outbound,
    Outcome,
    OutcomeKind,
    Publisher,
    TopicAdmin,
)
from apps.core.actor import Actor
from apps.core.errors import Invalid, Refused, Unavailable


def topics_named(*, names: Collection[str]) -> dict[str, Topic]:
    """Give every topic by name; make one that was never heard of, without a broker."""
    known = {topic.name: topic for topic in Topic.objects.filter(name__in=names)}
    unknown = sorted(set(names) - known.keys())
    if unknown:
        Topic.objects.bulk_create(
            [Topic(name=name, native_name=name) for name in unknown],
            ignore_conflicts=True,
        )
        made = Topic.objects.filter(name__in=unknown)
        known |= {topic.name: topic for topic in made}
    return known


@transaction.atomic
def register_broker(
    *,
    name: str,
    kind: str,
    url: str,
    is_sample: bool = False,
    actor: Actor,
    now: datetime,
) -> Broker:
    """Add a broker, or change the address of a known one; idempotent."""
    if kind not in adapters.KINDS:
        raise Invalid("kind", f"use one of {', '.join(sorted(adapters.KINDS))}")
    values = {"kind": kind, "url": url, "is_sample": is_sample}
    broker, created = Broker.objects.get_or_create(name=name, defaults=values)
    same = all(getattr(broker, field) == value for field, value in values.items())
    if same and not created:
        return broker
    Broker.objects.filter(pk=broker.pk).update(**values)
    audit.record(
        action=Action.BROKER_REGISTERED,
        subject=f"broker:{name}",
        actor=actor,
        now=now,
        detail={"kind": kind},
    )
    return Broker.objects.get(pk=broker.pk)


@transaction.atomic
def register_topic(
    *,
    name: str,
    broker: Broker,
    dead_letter_queue: str,
    policy: Mapping[str, float],
    actor: Actor,
    now: datetime,
) -> Topic:
    """Say which broker carries a topic and where its dead letters are; idempotent.

    `policy` may hold max_dequeue_count and visibility_timeout (seconds).
    """
    values = {"broker": broker, "dead_letter_queue": dead_letter_queue, **policy}
    topic, created = Topic.objects.get_or_create(
        name=name, defaults={"native_name": name, **values}
    )
    same = all(getattr(topic, field) == value for field, value in values.items())
    if same and not created:
        return topic
    Topic.objects.filter(pk=topic.pk).update(**values)
    audit.record(
        action=Action.TOPIC_REGISTERED,
        subject=f"topic:{name}",
        actor=actor,
        now=now,
        detail={"broker": broker.name, "dead_letter_queue": dead_letter_queue},
    )
    return Topic.objects.get(pk=topic.pk)


def note_lane(*, topic_id: int, state: str, detail: str, now: datetime) -> None:
    Topic.objects.filter(pk=topic_id).update(
        lane_state=state, lane_detail=detail[:500], lane_seen_at=now
    )


def reader_of(topic: Topic) -> DeadLetterReader:
    return adapters.dead_letter_reader(**_connection(topic))


def admin_of(topic: Topic) -> TopicAdmin:
    return adapters.topic_admin(**_connection(topic))


def _connection(topic: Topic) -> TopicValues:
    if topic.broker is None:
        raise Refused(f"the topic {topic.name} has no broker")
    return {
        "kind": topic.broker.kind,
        "url": topic.broker.url,
        "options": topic.broker.options,
        "topic": topic.native_name,
        "dead_letter_queue": topic.dead_letter_queue,
        "max_dequeue_count": topic.max_dequeue_count,
        "visibility_timeout": topic.visibility_timeout,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Addressed:
    """One message on its way; its topic comes with its broker, read beforehand."""

    topic: Topic
    body: bytes
    headers: tuple[Header, ...]


class RoutingPublisher:
    """Publish to whatever broker carries each message's topic.

    It asks the database nothing, so it may run in a thread of its own.
    """

    def __init__(self) -> None:
        self._publishers: dict[int, Publisher] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for publisher in self._publishers.values():
            publisher.close()

    def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
        """Send the messages, pipelined broker by broker; answer in their order.

        Never raises for a broker: what it could not be asked is `unknown`, what has
        nowhere to go is `refused`.
        """
        answers: dict[int, Outcome] = {}
        routes: dict[Broker, list[int]] = {}
        for place, message in enumerate(messages):
            if message.topic.broker is None:
                answers[place] = _refused(f"the topic {message.topic} has no broker")
            else:
                routes.setdefault(message.topic.broker, []).append(place)
        for broker, places in routes.items():
            outcomes = self._publish(broker, [_outbound(messages[p]) for p in places])
            answers.update(zip(places, outcomes, strict=True))
        return [answers[place] for place in range(len(messages))]

    def _publish(self, broker: Broker, batch: list[Outbound]) -> list[Outcome]:
        try:
            if broker.pk not in self._publishers:
                self._publishers[broker.pk] = adapters.publisher(
                    kind=broker.kind, url=broker.url, options=broker.options
                )
            return self._publishers[broker.pk].publish(batch)
        except Unavailable as away:
            self._forget(broker)
            return [Outcome(kind=OutcomeKind.UNKNOWN, detail=str(away))] * len(batch)
        except (Refused, Invalid) as refusal:
            return [_refused(str(refusal))] * len(batch)

    def _forget(self, broker: Broker) -> None:
        publisher = self._publishers.pop(broker.pk, None)
        if publisher is not None:
            publisher.close()


def _refused(reason: str) -> Outcome:
    return Outcome(kind=OutcomeKind.REFUSED, detail=reason)


def _outbound(message: Addressed) -> Outbound:
    return Outbound(
        topic=message.topic.native_name, body=message.body, headers=message.headers
    )
