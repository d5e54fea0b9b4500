"""Services for the rows of topics and brokers, and a publisher for all brokers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers import (
    adapters,
    allow_lists_of_older_brokers,
    failure_headers,
    polling_interval_of_billed_queues,
    refusal_of_celerys_own_broker,
    sealed_addresses,
    senders_of_topics_without_broker,
)
from apps.brokers.adapter_contract import (
    BrokerAdmin,
    Capabilities,
    DeadLetterReader,
    Header,
    Headers,
    Ordering,
    Outbound,
    OutcomeKind,
    Publisher,
    PublishOutcome,
    TopicAdmin,
)
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.address_policy import Target
from apps.brokers.models import Broker, Topic
from apps.brokers.queue_ownership import one_reader
from apps.brokers.row_locks import lock_broker
from apps.core.actor import Actor
from apps.core.errors import Invalid, Refused, Unavailable
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class Convention:
    """The dead-letter queue that a convention gives a topic, or why it gives none.

    Both are empty where the kind of broker has no convention.
    """

    queue: str = ""
    refusal: Invalid | None = None

    def require(self) -> str:
        """Return the conventional dead-letter queue, "" where there is no convention.

        Raises Invalid where the convention allows no name.
        """
        if self.refusal is not None:
            raise self.refusal
        return self.queue


def topics_named(*, names: Collection[str]) -> dict[str, Topic]:
    """Return topics by name; create unknown ones, without a broker."""
    topics = {topic.name: topic for topic in Topic.objects.filter(name__in=names)}
    unknown = sorted(set(names) - topics.keys())
    if unknown:
        Topic.objects.bulk_create(
            [Topic(name=name, native_name=name) for name in unknown],
            ignore_conflicts=True,
        )
        new_topics = Topic.objects.filter(name__in=unknown)
        topics |= {topic.name: topic for topic in new_topics}
    return topics


@transaction.atomic
def register_topic(
    *,
    name: str,
    broker: Broker,
    dead_letter_queue: str | None,
    policy: Mapping[str, float],
    native_name: str | None = None,
    actor: Actor,
    principal: Principal | None = None,
    now: datetime,
) -> Topic:
    """Set the broker and the dead-letter queue of a topic; idempotent.

    `policy` may hold max_dequeue_count and visibility_timeout (seconds). `native_name`
    is the broker's own name, where it differs. None as the queue means that of the
    kind's convention. Raises Invalid where the convention allows no name, and where
    another topic reads the queue.
    """
    if dead_letter_queue is None:
        convention = convention_of(kind=broker.kind, topic=native_name or name)
        dead_letter_queue = convention.require()
    values = {"broker": broker, "dead_letter_queue": dead_letter_queue, **policy}
    if native_name is not None:
        values["native_name"] = native_name
    lock_broker(broker)
    existing = Topic.objects.filter(name=name).first()
    if existing and all(
        getattr(existing, field) == here for field, here in values.items()
    ):
        return existing
    with one_reader(
        broker=broker, queue=dead_letter_queue, topic=name, principal=principal
    ):
        topic, _ = Topic.objects.get_or_create(
            name=name, defaults={"native_name": name, **values}
        )
        Topic.objects.filter(pk=topic.pk).update(**values, shares_queue=False)
    audit.record(
        action=Action.TOPIC_REGISTERED,
        subject=f"topic:{name}",
        actor=actor,
        now=now,
        detail={"broker": broker.name, "dead_letter_queue": dead_letter_queue},
    )
    return Topic.objects.get(pk=topic.pk)


def refuse_taken(*, name: str, native_name: str, broker: Broker) -> None:
    """Raise Refused where a topic has this name, or this place on the broker, already.

    The topic itself may be there, and a topic of that name that only reports know.
    """
    same = broker.topics.filter(native_name=native_name).exclude(name=name).first()
    if same is not None:
        raise Refused(f"{broker} has it here already, as {same.name}.")
    existing = Topic.objects.filter(name=name).exclude(broker=None).first()
    if existing is None:
        return
    if existing.broker_id != broker.pk:
        raise Refused(f"{existing.broker} carries the topic {name} already.")
    if existing.native_name != native_name:
        raise Refused(f"The topic {name} is {existing.native_name} on its broker.")


@transaction.atomic
def name_queue_by_convention(
    *, topic: Topic, principal: Principal, reason: str = "", now: datetime
) -> Topic:
    """Give a topic without a dead-letter queue the one by convention of its kind.

    Raises Invalid where the convention allows no name, or another topic reads the
    queue. Returns the topic unchanged where its kind has no convention, or a queue was
    named meanwhile.
    """
    queue = convention_of_topic(topic).require()
    unnamed = Topic.objects.filter(pk=topic.pk, dead_letter_queue="")
    with one_reader(
        broker=topic.broker, queue=queue, topic=topic.name, principal=principal
    ):
        named = unnamed.update(dead_letter_queue=queue) if queue else 0
    if named:
        audit.record(
            action=Action.TOPIC_ALTERED,
            subject=f"topic:{topic.name}",
            actor=principal.actor,
            source=principal.source,
            reason=reason,
            now=now,
            detail={"dead_letter_queue": ["", queue]},
        )
    return Topic.objects.select_related("broker").get(pk=topic.pk)


def convention_of_topic(topic: Topic) -> Convention:
    """Return the dead-letter queue by convention of a topic; empty without a broker."""
    if topic.broker is None:
        return Convention()
    return convention_of(kind=topic.broker.kind, topic=topic.native_name)


def convention_of(*, kind: str, topic: str) -> Convention:
    """Ask the adapter for a topic's dead-letter queue by convention.

    Returns a refusal where the convention allows no name.
    """
    try:
        return Convention(queue=adapters.adapter(kind).queue_by_convention(topic))
    except Invalid as refusal:
        return Convention(refusal=refusal)
    except Unavailable:
        return Convention()  # its client is missing, so nothing can be checked


def note_replays(*, topics: Collection[Topic]) -> None:
    """Record that these topics deliver old messages again to a new reader."""
    unknown = [topic.pk for topic in topics if not topic.replays]
    if unknown:
        Topic.objects.filter(pk__in=unknown).update(replays=True)


def capabilities_of(topic: Topic) -> Capabilities:
    """Return what the topic's kind of broker can do; raise Refused without a broker."""
    return adapters.adapter(_broker_of(topic).kind).capabilities


def time_between(topic: Topic, seq: int, later: int) -> timedelta | None:
    """Return the time between two positions of a topic, by the time in their numbers.

    None where the broker's ids hold no time, or the first position has none.
    """
    bits = capabilities_of(topic).seq_bits if topic.broker else None
    # A reader at 0 has read nothing yet: its position has no time.
    if bits is None or not seq >> bits:
        return None
    return timedelta(milliseconds=max((later >> bits) - (seq >> bits), 0))


def ordering_of(topic: Topic) -> Ordering:
    """Return the ordering of a topic on its broker; raise Refused without a broker."""
    broker = _broker_of(topic)
    return adapters.adapter(broker.kind).ordering(topic.native_name)


def polling_interval_of(topic: Topic) -> float:
    """Return a topic's longest polling interval in seconds; 0 where polling is free."""
    usual = capabilities_of(topic).polling_interval
    return (
        polling_interval_of_billed_queues.longest_interval(topic.options, usual=usual)
        if usual
        else 0.0
    )


def lost_headers_of(topic: Topic) -> frozenset[bytes]:
    """Name the headers that a message loses on its way to this topic.

    Headers about a failure never go along, so they are no loss.
    """
    try:
        reserved = capabilities_of(topic).reserved
    except Unavailable:
        return frozenset()  # its client is missing, so nothing can be sent there
    return frozenset(
        name for name in reserved if failure_headers.leaving(((name, b""),))
    )


def largest_bodies() -> dict[str, int]:
    """Map the kinds of registered brokers to the largest body that they take.

    Without kinds whose client or adapter is missing: nothing can be sent there.
    """
    kinds = Broker.objects.order_by().values_list("kind", flat=True).distinct()
    able = {kind: _capabilities_of_kind(kind) for kind in kinds}
    return {kind: each.largest_body for kind, each in able.items() if each}


def topics_without_headers() -> set[int]:
    """Return the ids of topics whose messages carry no headers, so no mark."""
    kinds = Broker.objects.order_by().values_list("kind", flat=True).distinct()
    without = [kind for kind in kinds if not _has_headers(kind)]
    topics = Topic.objects.filter(broker__kind__in=without) if without else ()
    return {topic.pk for topic in topics}


def _has_headers(kind: str) -> bool:
    """Tell whether messages on this kind of broker carry headers; yes if unknown."""
    capabilities = _capabilities_of_kind(kind)
    return capabilities is None or capabilities.headers is not Headers.NONE


def _capabilities_of_kind(kind: str) -> Capabilities | None:
    """Return what a kind of broker can do; None without its client or its adapter."""
    try:
        return adapters.adapter(kind).capabilities
    except (Invalid, Unavailable):
        return None  # nothing can be sent there


def reader_of(topic: Topic) -> DeadLetterReader:
    """Make a reader of a topic's dead-letter queue; the caller closes it."""
    broker = _broker_of(topic)
    adapter = adapters.adapter(broker.kind)
    return adapter.dead_letter_reader(settings_of(broker), _topic_settings(topic))


def admin_of(topic: Topic) -> TopicAdmin:
    """Make the admin that counts and inspects a topic; the caller closes it."""
    broker = _broker_of(topic)
    adapter = adapters.adapter(broker.kind)
    return adapter.topic_admin(settings_of(broker), _topic_settings(topic))


def broker_admin_of(broker: Broker) -> BrokerAdmin:
    """Make the admin that tests a broker and lists topics; the caller closes it."""
    return adapters.adapter(broker.kind).broker_admin(settings_of(broker))


def settings_of(broker: Broker) -> BrokerSettings:
    """Return a broker's settings for an adapter; raise Invalid for a bad host.

    Checks the address each time, since the same name may resolve to another address.
    """
    sealed_addresses.check_variable(
        broker.url,
        is_sample=broker.is_sample,
        allowed=allow_lists_of_older_brokers.of(broker),
    )
    url = sealed_addresses.reveal(broker.url)
    refusal_of_celerys_own_broker.refuse(url, resolve=True)
    target = target_of(broker)
    target.check(resolve=True)
    return BrokerSettings(url=url, options=broker.options, target=target)


def target_of(broker: Broker) -> Target:
    """Return a broker's target: the hosts that its address and its options name.

    Raises Unavailable without its address.
    """
    url, kind = sealed_addresses.reveal(broker.url), adapters.kind_named(broker.kind)
    return Target.of_broker(
        url,
        broker.options,
        is_trusted=broker.url.startswith(sealed_addresses.FROM_ENVIRONMENT),
        keeps_to_address=(
            kind.sends_password_by_options or kind.calls_as_this_machine(url)
        ),
        allowed=allow_lists_of_older_brokers.of(broker),
    )


def _broker_of(topic: Topic) -> Broker:
    """Return the topic's broker; raise Refused without one."""
    if topic.broker is None:
        raise Refused(f"the topic {topic.name} has no broker")
    return topic.broker


def _topic_settings(topic: Topic) -> TopicSettings:
    """Return the topic's settings, as an adapter takes them."""
    return TopicSettings(
        topic=topic.native_name,
        dead_letter_queue=topic.dead_letter_queue,
        max_dequeue_count=topic.max_dequeue_count,
        visibility_timeout=topic.visibility_timeout,
        options=topic.options,
        reads_itself=topic.takes_requests,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutedMessage:
    """One message to send; its topic comes with its broker already loaded.

    A `queue`, by the broker's own name, replaces the topic as destination.
    """

    topic: Topic
    body: bytes
    headers: tuple[Header, ...]
    queue: str = ""
    dedupe: str = ""
    key: str = ""


class RoutingPublisher:
    """Publisher that routes each message to the broker of its topic.

    It may run in a thread of its own, which then needs a database connection only for
    topics without a broker.
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
        self.close()

    def close(self) -> None:
        """Close the connections to all brokers."""
        while self._publishers:
            _, publisher = self._publishers.popitem()
            publisher.close()

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        """Send the messages, pipelined per broker; return outcomes in their order.

        Never raises because of a broker: a message is `unsent` where its broker is
        away, and `refused` where it has no destination.
        """
        answers: dict[int, PublishOutcome] = {}
        routes: dict[Broker | None, list[int]] = {}
        for index, message in enumerate(messages):
            routes.setdefault(message.topic.broker, []).append(index)
        for broker, indexes in routes.items():
            batch = [messages[index] for index in indexes]
            if broker is None:
                outcomes = senders_of_topics_without_broker.publish(batch)
            else:
                outcomes = self._publish(broker, [_outbound(each) for each in batch])
            answers.update(zip(indexes, outcomes, strict=True))
        return [answers[index] for index in range(len(messages))]

    def _publish(self, broker: Broker, batch: list[Outbound]) -> list[PublishOutcome]:
        """Publish routed messages to one broker; its error becomes their outcome."""
        try:
            if broker.pk not in self._publishers:
                adapter = adapters.adapter(broker.kind)
                self._publishers[broker.pk] = adapter.publisher(settings_of(broker))
            return self._publishers[broker.pk].publish(batch)
        except Unavailable as away:
            self._forget(broker)
            return [PublishOutcome(kind=OutcomeKind.UNSENT, detail=str(away))] * len(
                batch
            )
        except (Refused, Invalid) as refusal:
            return [_refused_outcome(str(refusal))] * len(batch)

    def _forget(self, broker: Broker) -> None:
        """Close the connection to a broker; the next message opens another."""
        publisher = self._publishers.pop(broker.pk, None)
        if publisher is not None:
            publisher.close()


def _refused_outcome(reason: str) -> PublishOutcome:
    """Return the outcome of a routed message that its broker or adapter refused."""
    return PublishOutcome(kind=OutcomeKind.REFUSED, detail=reason)


def _outbound(message: RoutedMessage) -> Outbound:
    """Convert a routed message for its broker, addressed to its queue or its topic."""
    return Outbound(
        topic=message.queue or message.topic.native_name,
        body=message.body,
        headers=message.headers,
        dedupe=message.dedupe,
        key=message.key,
    )
