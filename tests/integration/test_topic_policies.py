"""A topic's policies are parsed strictly, and stored with a reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from apps.audit.models import Entry
from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import polling_interval_of
from apps.brokers.topic_policies import (
    Policies,
    options_from,
    policies_of_host_json,
    set_policies,
)
from apps.core.errors import Absent, Forbidden, Invalid
from apps.team.rights import Principal, Scope

pytestmark = pytest.mark.django_db

AZURE = ("azure_queue", "UseDevelopmentStorage=true")
SQS = ("sqs", "sqs://eu-central-1")


@pytest.fixture
def topic() -> Topic:
    broker = Broker.objects.create(
        name="ours", kind="redis_streams", url="redis://localhost"
    )
    return Topic.objects.create(
        name="orders",
        native_name="orders",
        broker=broker,
        dead_letter_queue="orders-poison",
    )


def test_policies_are_stored_and_audited(
    topic: Topic, operator: Principal, now: datetime
) -> None:
    changes = {"max_dequeue_count": 3, "owner": "Team Ä", "runbook": "https://wiki/x"}
    policies = Policies.of(topic).changed(changes)

    for _ in range(2):
        topic = set_policies(
            topic=topic, policies=policies, reason="ours", principal=operator, now=now
        )

    entry = Entry.objects.get(action="topic.altered")
    assert Policies.of(Topic.objects.get()) == policies
    assert (entry.subject, entry.reason) == ("topic:orders", "ours")
    assert entry.detail["max_dequeue_count"] == [5, 3]
    assert entry.detail.keys() == changes.keys()


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("max_dequeue_count", "7", 7),
        ("visibility_timeout", "0.5", 0.5),
        ("visibility_timeout", 30, 30.0),
        ("visibility_timeout", "00:10:00", 600.0),
        ("visibility_timeout", "1.02:03:04", 93_784.0),
        ("visibility_timeout", "00:00:01.5", 1.5),
        ("retention_days", "", None),
        ("retention_days", None, None),
        ("retention_days", "30", 30),
        ("owner", " Anna ", "Anna"),
        ("runbook", "", ""),
        ("runbook", "HTTP://wiki/a?b=c#d", "HTTP://wiki/a?b=c#d"),
        ("dead_letter_queue", " with a space", " with a space"),
        ("options", {"body_field": "😀"}, {"body_field": "😀"}),
    ],
)
def test_policies_are_parsed_from_what_people_write(
    field: str, value: object, read: object
) -> None:
    assert getattr(Policies().changed({field: value}), field) == read


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_dequeue_count", 0),
        ("max_dequeue_count", True),
        ("max_dequeue_count", "5.5"),
        ("max_dequeue_count", "٣"),
        ("max_dequeue_count", "9" * 5_000),
        ("max_dequeue_count", ""),
        ("visibility_timeout", 0),
        ("visibility_timeout", "nan"),
        ("visibility_timeout", "inf"),
        ("visibility_timeout", "-1"),
        ("visibility_timeout", "00:99:00"),
        ("visibility_timeout", "soon"),
        ("visibility_timeout", None),
        ("visibility_timeout", False),
        ("retention_days", 0),
        ("retention_days", 10**6),
        ("owner", "a\0b"),
        ("owner", "x" * 201),
        ("owner", "\ud800"),
        ("owner", None),
        ("runbook", "javascript:alert(1)"),
        ("runbook", "data:text/html,x"),
        ("runbook", "//evil.example"),
        ("runbook", "https://"),
        ("runbook", "https://a b"),
        ("runbook", "https://a\u202eb"),
        ("runbook", "https://[::1"),
        ("runbook", "https://" + "x" * 2_000),
        ("options", []),
        ("options", "x"),
        ("options", {"a": float("nan")}),
        ("options", {"a": "\0"}),
        ("options", {"a": "\ud800"}),
        ("options", {"a": "x" * 10_000}),
    ],
)
def test_an_invalid_policy_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(Invalid) as wrong:
        Policies().changed({field: value})

    assert wrong.value.field == field


@pytest.mark.parametrize(
    ("text", "read"), [("", {}), (" \n", {}), ('{"a": 1}', {"a": 1})]
)
def test_options_are_written_as_json(text: str, read: object) -> None:
    assert options_from(text) == read


@pytest.mark.parametrize("text", ["[", "[1]", "{a: 1}", "[" * 100_000, '{"a": NaN}'])
def test_options_that_are_not_a_json_object_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="options"):
        options_from(text)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"options": {"colour": "red"}}, "options"),
        ({"dead_letter_queue": "orders"}, "dead_letter_queue"),
    ],
)
def test_a_policy_that_the_broker_cannot_apply_is_refused(
    topic: Topic,
    operator: Principal,
    now: datetime,
    changes: dict[str, object],
    field: str,
) -> None:
    policies = Policies.of(topic).changed(changes)

    with pytest.raises(Invalid) as wrong:
        set_policies(topic=topic, policies=policies, principal=operator, now=now)

    assert wrong.value.field == field
    assert not Entry.objects.exists()


@pytest.mark.parametrize("count", [5, 7])
def test_an_option_that_repeats_a_policy_is_refused_and_the_error_names_the_policy(
    topic: Topic, operator: Principal, now: datetime, count: int
) -> None:
    Broker.objects.update(kind=AZURE[0], url=AZURE[1])
    topic = Topic.objects.select_related("broker").get(pk=topic.pk)
    options = options_from(f'{{"maxDequeueCount": {count}, "batchSize": 4}}')

    with pytest.raises(Invalid, match="max_dequeue_count") as wrong:
        set_policies(
            topic=topic,
            policies=Policies.of(topic).changed({"options": options}),
            principal=operator,
            now=now,
        )

    assert wrong.value.field == "options"
    assert Policies.of(Topic.objects.get()) == Policies.of(topic)


@pytest.mark.parametrize(
    ("kind", "url", "options", "remedy"),
    [
        (*AZURE, {"batchSize": 40}, "batchSize is 40: use 1 to 32."),
        (*AZURE, {"visibilityTimeout": "soon"}, "visibilityTimeout is hh:mm:ss"),
        (*SQS, {"maxPollingInterval": "soon"}, "maxPollingInterval is a number"),
        (*SQS, {"maxPollingInterval": 0}, "maxPollingInterval is more than 0 s"),
        (*SQS, {"batchSize": 4}, "batchSize is unknown"),
    ],
)
def test_an_invalid_option_is_refused_in_the_field_options_and_named(
    topic: Topic,
    operator: Principal,
    now: datetime,
    kind: str,
    url: str,
    options: dict[str, object],
    remedy: str,
) -> None:
    Broker.objects.update(kind=kind, url=url)
    topic = Topic.objects.select_related("broker").get(pk=topic.pk)
    policies = Policies.of(topic).changed({"options": options})

    with pytest.raises(Invalid) as wrong:
        set_policies(topic=topic, policies=policies, principal=operator, now=now)

    assert wrong.value.field == "options"
    assert wrong.value.remedy.startswith(remedy)


def test_the_polling_interval_is_an_option_where_polls_are_billed(
    topic: Topic, operator: Principal, now: datetime
) -> None:
    kind, url = SQS
    Broker.objects.update(kind=kind, url=url)
    topic = Topic.objects.select_related("broker").get(pk=topic.pk)
    usual = polling_interval_of(topic)
    policies = Policies.of(topic).changed(
        {"options": {"maxPollingInterval": "00:01:00"}}
    )

    topic = set_policies(topic=topic, policies=policies, principal=operator, now=now)

    assert (usual, polling_interval_of(topic)) == (15.0, 60.0)


def test_a_policy_in_pasted_options_becomes_the_policy(topic: Topic) -> None:
    Broker.objects.update(kind=AZURE[0], url=AZURE[1])
    topic = Topic.objects.select_related("broker").get(pk=topic.pk)
    queues = '{"extensions": {"queues": {"maxDequeueCount": 7, "batchSize": 4}}}'

    both = policies_of_host_json(
        topic, queues, {"max_dequeue_count": "3", "options": {}}
    )
    neither = policies_of_host_json(
        topic, queues.replace('"maxDequeueCount": 7, ', ""), both
    )

    assert both == {"max_dequeue_count": 7, "options": {"batchSize": 4}}
    assert neither == both


def test_a_topic_without_a_broker_has_no_dead_letter_queue(
    operator: Principal, now: datetime
) -> None:
    topic = Topic.objects.create(name="told", native_name="told")
    owned = Policies.of(topic).changed({"owner": "Anna"})

    set_policies(topic=topic, policies=owned, principal=operator, now=now)
    with pytest.raises(Invalid, match="broker"):
        set_policies(
            topic=topic,
            policies=owned.changed({"dead_letter_queue": "told-poison"}),
            principal=operator,
            now=now,
        )

    assert Topic.objects.get().owner == "Anna"


def test_policies_can_be_set_while_the_brokers_url_is_missing(
    topic: Topic, operator: Principal, now: datetime
) -> None:
    Broker.objects.update(url="env:BROKER_NOT_THERE_YET")
    topic = Topic.objects.select_related("broker").get()

    policies = Policies.of(topic).changed({"max_dequeue_count": 9})
    changed = set_policies(topic=topic, policies=policies, principal=operator, now=now)

    assert changed.max_dequeue_count == 9


def test_policies_can_be_changed_only_by_principals_who_write_brokers_and_see_the_topic(
    topic: Topic, operator: Principal, now: datetime
) -> None:
    policies = Policies.of(topic).changed({"owner": "me"})
    reader = replace(operator, scopes=frozenset(Scope) - {Scope.BROKERS_WRITE})
    stranger = replace(operator, topics=("invoices",))

    with pytest.raises(Forbidden):
        set_policies(topic=topic, policies=policies, principal=reader, now=now)
    with pytest.raises(Absent):
        set_policies(topic=topic, policies=policies, principal=stranger, now=now)

    assert Topic.objects.get().owner == ""
