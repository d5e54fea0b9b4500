"""Registering brokers: sealed URLs, connectivity tests, and adopting their topics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from apps.audit.models import Entry
from apps.brokers import ping_and_discovery, sealed_addresses
from apps.brokers.adapter_contract import FoundTopic
from apps.brokers.models import Broker, Topic
from apps.brokers.services import broker_registration, topics_and_routing_publisher
from apps.core.errors import Forbidden, Invalid, Refused
from apps.team.rights import Principal, Scope
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def stored_broker(redis_url: str, operator: Principal, now: datetime) -> Broker:
    return add(redis_url, operator, now)


def add(url: str, principal: Principal, now: datetime, **changes: Any) -> Broker:
    fields: dict[str, Any] = {
        "name": "ours",
        "kind": "redis_streams",
        "url": url,
        **changes,
    }
    return broker_registration.add(**fields, options={}, principal=principal, now=now)


def found_topic(name: str, queue: str = "") -> FoundTopic:
    return FoundTopic(name=name, depth=1, dead_letter_queue=queue, dead_letters=None)


def adopt(
    broker: Broker, principal: Principal, now: datetime, *names: str
) -> list[str]:
    topics = broker_registration.adopt_topics(
        broker=broker,
        topics=[found_topic(name, f"{name}-poison") for name in names],
        principal=principal,
        now=now,
    )
    return [topic.name for topic in topics]


def test_a_url_is_sealed_and_never_shown(stored_broker: Broker, redis_url: str) -> None:
    entry = Entry.objects.get(action="broker.registered")

    assert redis_url not in stored_broker.url
    assert sealed_addresses.reveal(stored_broker.url) == redis_url
    assert topics_and_routing_publisher.settings_of(stored_broker).url == redis_url
    assert str(urlsplit(redis_url).password) not in entry.record


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": " ours "}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"kind": "carrier_pigeon"}, "kind"),
        ({"url": ""}, "url"),
        ({"url": "redis://169.254.169.254"}, "url"),
        ({"url": "http://localhost"}, "url"),
        ({"url": "redis://:secret@localhost:port"}, "url"),
        ({"url": "redis://localhost/\0"}, "url"),
        ({"url": "sealed:AAAA"}, "url"),
        ({"url": "env:not a name"}, "url"),
        ({"url": "env:POISONWEB_REDIS_URL"}, "url"),
        ({"url": "redis://" + "x" * 5_000}, "url"),
    ],
)
def test_an_invalid_broker_is_refused_by_its_field(
    operator: Principal, now: datetime, change: dict[str, str], field: str
) -> None:
    fields = {"url": "redis://localhost", **change}

    with pytest.raises(Invalid) as wrong:
        add(fields.pop("url"), operator, now, **fields)

    assert wrong.value.field == field
    assert "secret" not in wrong.value.remedy
    assert Broker.objects.count() == 0


@pytest.mark.parametrize(
    "url",
    [
        *("redis://127.0.0.1:99999/0", "redis://127.0.0.1:abc/0", "127.0.0.1:6379"),
        "redis://:se/cret@127.0.0.1/0",
    ],
)
def test_an_invalid_url_is_refused_with_an_example(
    operator: Principal, now: datetime, url: str
) -> None:
    with pytest.raises(Invalid, match=r"redis://.*percent-encode") as wrong:
        add(url, operator, now)

    assert wrong.value.field == "url"


def test_the_sample_is_marked_and_may_name_its_variable(
    operator: Principal, now: datetime
) -> None:
    url = "env:POISONWEB_REDIS_URL"

    sample = add(url, operator, now, is_sample=True)
    ours = add("redis://localhost", operator, now, name="other")

    assert (sample.url, sample.is_sample) == (url, True)
    assert not ours.is_sample


def test_a_broker_name_in_use_is_refused(
    stored_broker: Broker, operator: Principal, now: datetime
) -> None:
    other = add("redis://localhost", operator, now, name="other")

    with pytest.raises(Invalid, match="already"):
        add("redis://localhost", operator, now)
    with pytest.raises(Invalid, match="already"):
        broker_registration.alter(
            broker=other, name="ours", principal=operator, now=now
        )


def test_only_the_given_members_of_a_broker_are_changed(
    stored_broker: Broker, operator: Principal, now: datetime
) -> None:
    renamed = broker_registration.alter(
        broker=stored_broker, name="b", principal=operator, now=now
    )
    options = {"body_field": "payload"}
    broker_registration.alter(
        broker=renamed, options=options, principal=operator, now=now
    )
    same = broker_registration.alter(
        broker=renamed, name="b", principal=operator, now=now
    )

    broker = Broker.objects.get()
    entries = Entry.objects.filter(action="broker.altered").order_by("seq")
    assert (broker.name, broker.url, broker.options) == (
        "b",
        stored_broker.url,
        options,
    )
    assert same == broker
    assert [entry.detail["changed"] for entry in entries] == [["name"], ["options"]]


@pytest.mark.parametrize(
    "change", [{"options": {"colour": "red"}}, {"url": "redis://[fe80::1]"}]
)
def test_an_invalid_change_changes_nothing(
    stored_broker: Broker, operator: Principal, now: datetime, change: dict[str, object]
) -> None:
    with pytest.raises(Invalid):
        broker_registration.alter(
            broker=stored_broker,
            principal=operator,
            now=now,
            **change,  # type: ignore[arg-type] # of several kinds
        )

    assert Broker.objects.get().url == stored_broker.url
    assert not Entry.objects.filter(action="broker.altered").exists()


@pytest.mark.parametrize(
    "limit",
    [
        {"topics": ("orders.*",)},
        {"scopes": frozenset(Scope) - {Scope.BROKERS_WRITE}},
    ],
)
def test_a_principal_who_may_not_write_brokers_changes_none(
    stored_broker: Broker, operator: Principal, now: datetime, limit: dict[str, object]
) -> None:
    limited = replace(operator, **limit)  # type: ignore[arg-type] # of several kinds

    with pytest.raises(Forbidden):
        add("redis://localhost", limited, now, name="other")
    with pytest.raises(Forbidden):
        broker_registration.alter(
            broker=stored_broker, name="other", principal=limited, now=now
        )
    with pytest.raises(Forbidden):
        adopt(stored_broker, limited, now, "invoices")

    assert list(Broker.objects.values_list("name")) == [("ours",)]
    assert Topic.objects.count() == 0


def test_the_connectivity_test_names_the_brokers_product(stored_broker: Broker) -> None:
    reached = ping_and_discovery.reach(broker=stored_broker)

    assert reached.ok
    assert reached.detail.startswith("Redis ")


def test_a_wrong_password_is_reported_without_quoting_it(
    redis_url: str, operator: Principal, now: datetime
) -> None:
    parts = urlsplit(redis_url)
    wrong = f"redis://:not%21mine@{parts.hostname}:{parts.port}/1"
    broker = add(wrong, operator, now)

    reached = ping_and_discovery.reach(broker=broker)

    assert not reached.ok
    assert reached.detail
    assert not any(part in reached.detail for part in ("not!mine", "not%21mine", wrong))


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u:p%40ss-word@mq/v?password=p%40ss-word",
        "AccountName=a;AccountKey=p@ss-word",
    ],
)
def test_secrets_of_a_url_are_removed_from_texts(url: str) -> None:
    said = f"cannot log in to {url} with p@ss-word, p%40ss-word"

    text = ping_and_discovery.conceal_secrets(said, url=url)

    assert text == "cannot log in to ••• with •••, •••"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Return a port on which a server listens and never answers."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_the_wait_for_a_silent_broker_is_bounded(
    operator: Principal, now: datetime, silent_port: int
) -> None:
    broker = add(f"redis://127.0.0.1:{silent_port}", operator, now)

    reached = ping_and_discovery.reach(broker=broker, within=0.1)

    assert (reached.ok, reached.detail) == (False, "It did not answer within 0.1 s.")
    assert reached.milliseconds < 20_000


def test_a_missing_variable_is_reported(
    operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    broker = add("env:BROKER_OURS", operator, now)

    before = ping_and_discovery.reach(broker=broker)
    monkeypatch.setenv("BROKER_OURS", redis_url)
    after = ping_and_discovery.reach(broker=broker)

    assert broker.url == "env:BROKER_OURS"
    assert (before.ok, "BROKER_OURS" in before.detail) == (False, True)
    assert after.ok


def test_the_address_policy_is_checked_at_each_connection(
    stored_broker: Broker,
) -> None:
    sealed = sealed_addresses.seal("redis://169.254.169.254")
    Broker.objects.update(url=sealed)

    reached = ping_and_discovery.reach(broker=Broker.objects.get())

    assert not reached.ok
    assert "no broker is" in reached.detail


def test_a_connectivity_test_leaves_no_thread_behind(stored_broker: Broker) -> None:
    before = threading.active_count()

    for _ in range(ping_and_discovery.MOST_ASKED + 1):
        assert ping_and_discovery.reach(broker=stored_broker).ok

    wait_until(lambda: threading.active_count() <= before + 1)


def test_the_topics_of_a_broker_are_discovered_and_adopted(
    stored_broker: Broker, stream: redis.Redis, operator: Principal, now: datetime
) -> None:
    stream.xadd("orders", {"body": b"1"})
    stream.xadd("orders-poison", {"body": b"1"})
    stream.xadd("plain", {"body": b"1"})

    topics_found = ping_and_discovery.discover(broker=stored_broker)
    broker_registration.adopt_topics(
        broker=stored_broker, topics=topics_found, principal=operator, now=now
    )

    facts = [
        (each.name, each.dead_letter_queue, each.dead_letters) for each in topics_found
    ]
    rows = Topic.objects.order_by("name").values_list("name", "dead_letter_queue")
    assert facts == [("orders", "orders-poison", 1), ("plain", "", None)]
    assert list(rows) == [("orders", "orders-poison"), ("plain", "")]


def test_adopting_keeps_the_settings_of_existing_topics(
    stored_broker: Broker, operator: Principal, now: datetime
) -> None:
    Topic.objects.create(
        name="mine",
        native_name="orders",
        broker=stored_broker,
        dead_letter_queue="elsewhere",
    )
    Topic.objects.create(name="told", native_name="told")

    names = adopt(stored_broker, operator, now, "orders", "told")

    assert names == ["mine", "told"]
    assert Topic.objects.get(name="mine").dead_letter_queue == "elsewhere"
    assert Topic.objects.get(name="told").broker == stored_broker


def test_adopting_leaves_out_a_topic_of_another_broker(
    stored_broker: Broker, operator: Principal, now: datetime
) -> None:
    other = add("redis://localhost", operator, now, name="other")
    adopt(stored_broker, operator, now, "orders")

    names = [adopt(other, operator, now, "orders") for _ in "ab"]

    assert names == [["orders@other"]] * 2
    assert Topic.objects.get(name="orders").broker == stored_broker
    assert Topic.objects.get(name="orders@other").native_name == "orders"


def test_adopting_takes_no_topic_away_from_another_broker(
    stored_broker: Broker, operator: Principal, now: datetime
) -> None:
    other = add("redis://localhost", operator, now, name="other")
    adopt(stored_broker, operator, now, "orders", "orders@other")

    with pytest.raises(Refused, match="ours carries the topic orders@other already"):
        adopt(other, operator, now, "orders")

    assert Topic.objects.get(name="orders@other").broker == stored_broker


@pytest.mark.parametrize("name", ["a\0b", "\udcff"])
def test_a_name_that_is_not_text_is_refused(
    stored_broker: Broker, operator: Principal, now: datetime, name: str
) -> None:
    with pytest.raises(Refused, match="no text"):
        adopt(stored_broker, operator, now, "orders", name)

    assert Topic.objects.count() == 0
