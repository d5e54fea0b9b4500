"""A dead-letter queue belongs to one topic, and a key can set only its own queues."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from django.db import IntegrityError

from apps.audit.models import Entry
from apps.brokers import queue_ownership
from apps.brokers.adapter_contract import FoundTopic
from apps.brokers.models import Broker, Topic
from apps.brokers.services import broker_registration
from apps.brokers.services.topics_and_routing_publisher import register_topic
from apps.brokers.topic_policies import Policies, set_policies
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.models import Lane, Mode
from apps.core.errors import Forbidden, Invalid
from apps.team.rights import Principal
from tests.in_memory_queue_broker import Queues, adapted
from tests.races import together

pytestmark = pytest.mark.django_db


@pytest.fixture
def broker() -> Broker:
    return Broker.objects.create(
        name="ours", kind="redis_streams", url="redis://127.0.0.1:9"
    )


@pytest.fixture
def mine(operator: Principal) -> Principal:
    return replace(operator, topics=("mine.*",))


def topic_of(broker: Broker, name: str, queue: str = "") -> Topic:
    return Topic.objects.create(
        name=name, native_name=name, broker=broker, dead_letter_queue=queue
    )


def name_queue(topic: Topic, queue: str, principal: Principal, now: datetime) -> Topic:
    policies = Policies.of(topic).changed({"dead_letter_queue": queue})
    return set_policies(topic=topic, policies=policies, principal=principal, now=now)


def test_a_second_topic_of_a_queue_is_refused_and_the_first_is_named(
    broker: Broker, operator: Principal, now: datetime
) -> None:
    topic_of(broker, "orders", "failed")
    bills = topic_of(broker, "bills", "bills-dead")

    with pytest.raises(Invalid, match="the topic orders reads failed") as wrong:
        name_queue(bills, "failed", operator, now)

    assert wrong.value.field == "dead_letter_queue"
    assert Topic.objects.get(name="bills").dead_letter_queue == "bills-dead"
    assert not Entry.objects.exists()


def test_the_same_queue_name_on_another_broker_is_another_queue(
    broker: Broker, operator: Principal, now: datetime
) -> None:
    other = Broker.objects.create(name="b", kind="redis_streams", url="redis://h")
    topic_of(other, "orders", "failed")

    name_queue(topic_of(broker, "bills"), "failed", operator, now)

    assert Topic.objects.get(name="bills").dead_letter_queue == "failed"


def test_the_error_for_a_key_does_not_name_a_topic_that_it_cannot_see(
    broker: Broker, mine: Principal, now: datetime
) -> None:
    topic_of(broker, "secret-project", "mine.dead")

    with pytest.raises(Invalid, match="another topic reads mine.dead"):
        name_queue(topic_of(broker, "mine.a"), "mine.dead", mine, now)


def test_a_queue_that_another_topic_got_meanwhile_is_refused(
    broker: Broker,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic_of(broker, "orders", "failed")
    bills = topic_of(broker, "bills")
    looks = iter([None])
    look = queue_ownership.reader_of_queue
    monkeypatch.setattr(
        queue_ownership, "reader_of_queue", lambda **about: next(looks, look(**about))
    )

    with pytest.raises(Invalid, match="the topic orders reads failed"):
        name_queue(bills, "failed", operator, now)


@pytest.mark.django_db(transaction=True)
def test_of_two_topics_given_the_same_queue_at_once_one_gets_it(
    broker: Broker, operator: Principal, now: datetime
) -> None:
    names = ("orders", "bills")
    topics = [topic_of(broker, name) for name in names]

    def give(turn: int) -> str:
        try:
            return name_queue(topics[turn], "failed", operator, now).name
        except Invalid:
            return ""

    results = sorted(together(2, give))

    assert results[0] == ""
    assert results[1] in names
    assert Topic.objects.filter(dead_letter_queue="failed").count() == 1


def test_a_discovered_topic_with_a_queue_of_another_is_registered_without_one(
    broker: Broker, operator: Principal, now: datetime
) -> None:
    found_topics = [
        FoundTopic(name=name, depth=1, dead_letter_queue="shared", dead_letters=1)
        for name in ("orders", "bills")
    ]

    topics = broker_registration.adopt_topics(
        broker=broker, topics=found_topics, principal=operator, now=now
    )
    observed = lane_mode_and_pause.observe_all(
        topics=topics, principal=operator, now=now
    )

    assert [topic.dead_letter_queue for topic in topics] == ["shared", ""]
    assert observed == 1


def test_a_queue_of_the_convention_that_another_topic_reads_is_refused(
    operator: Principal, now: datetime
) -> None:
    with adapted(Queues(convention="-dead")):
        broker = Broker.objects.create(name="q", kind="queues", url="queues://here")
        topic_of(broker, "orders", "mail-dead")
        mail = topic_of(broker, "mail")

        with pytest.raises(Invalid, match="the topic orders reads mail-dead"):
            lane_mode_and_pause.set_mode(
                topic=mail, mode=Mode.OBSERVE, principal=operator, now=now
            )
        with pytest.raises(Invalid, match="the topic orders reads mail-dead"):
            register_topic(
                name="mail",
                broker=broker,
                dead_letter_queue=None,
                policy={},
                actor=operator.actor,
                now=now,
            )

    assert not Lane.objects.exists()


def test_a_key_cannot_set_a_dead_letter_queue_outside_its_patterns(
    broker: Broker, mine: Principal, now: datetime
) -> None:
    topic = topic_of(broker, "mine.a", "mine.a-dead")

    with pytest.raises(Forbidden, match="not for the queue other-dead"):
        name_queue(topic, "other-dead", mine, now)
    name_queue(topic, "mine.b-dead", mine, now)

    assert Topic.objects.get().dead_letter_queue == "mine.b-dead"


def test_a_key_may_keep_a_queue_outside_its_patterns_that_is_set_already(
    broker: Broker, mine: Principal, now: datetime
) -> None:
    topic = topic_of(broker, "mine.a", "other-dead")
    policies = Policies.of(topic).changed(
        {"dead_letter_queue": "other-dead", "owner": "us"}
    )

    set_policies(topic=topic, policies=policies, principal=mine, now=now)

    assert Topic.objects.get().owner == "us"


def test_a_key_cannot_send_copies_to_a_queue_outside_its_patterns(
    broker: Broker, mine: Principal, now: datetime
) -> None:
    topic = topic_of(broker, "mine.a", "mine.a-dead")

    with pytest.raises(Forbidden, match="not for the queue other.b"):
        lane_mode_and_pause.set_mode(
            topic=topic, mode=Mode.TEE, tee_queue="other.b", principal=mine, now=now
        )
    lane_mode_and_pause.set_mode(
        topic=topic, mode=Mode.TEE, tee_queue="mine.copies", principal=mine, now=now
    )

    assert Lane.objects.get().tee_queue == "mine.copies"


@pytest.fixture
def shared_before(broker: Broker) -> list[Topic]:
    """Create topics that share a queue since a former release, as its upgrade does."""
    topics = [topic_of(broker, "a", "q")]
    topics += [
        Topic.objects.create(
            name=name,
            native_name=name,
            broker=broker,
            dead_letter_queue="q",
            shares_queue=True,
        )
        for name in ("b", "e")
    ]
    return topics


def test_topics_that_share_a_queue_since_before_keep_it(
    shared_before: list[Topic], operator: Principal, now: datetime
) -> None:
    policies = Policies.of(shared_before[1])
    set_policies(
        topic=shared_before[1],
        policies=replace(policies, owner="us"),
        principal=operator,
        now=now,
    )
    name_queue(Topic.objects.get(name="b"), "own", operator, now)

    freed = Topic.objects.get(name="b")
    assert (freed.owner, freed.shares_queue) == ("us", False)
    with pytest.raises(Invalid, match="the topic a reads q"):
        name_queue(freed, "q", operator, now)
    with pytest.raises(IntegrityError):
        Topic.objects.filter(name="b").update(dead_letter_queue="q")
