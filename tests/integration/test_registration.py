"""Brokers that people enter are kept safely, answer in words, and give their topics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from urllib.parse import urlsplit

import pytest
import redis

from apps.audit.models import Entry
from apps.brokers import connectivity, secrets
from apps.brokers.models import Broker, Topic
from apps.brokers.ports import FoundTopic
from apps.brokers.services import registration, topics
from apps.core.errors import Forbidden, Invalid, Refused
from apps.team.rights import Principal, Scope

pytestmark = pytest.mark.django_db


@pytest.fixture
def kept(redis_url: str, operator: Principal, now: datetime) -> Broker:
    return add(redis_url, operator, now)


def add(url: str, principal: Principal, now: datetime, **changes: str) -> Broker:
    told = {"name": "ours", "kind": "redis_streams", "url": url, **changes}
    return registration.add(**told, options={}, principal=principal, now=now)


def found(name: str, queue: str = "") -> FoundTopic:
    return FoundTopic(name=name, depth=1, dead_letter_queue=queue, dead_letters=None)


def adopt(
    broker: Broker, principal: Principal, now: datetime, *names: str
) -> list[str]:
    topics = registration.adopt_topics(
        broker=broker,
        topics=[found(name, f"{name}-poison") for name in names],
        principal=principal,
        now=now,
    )
    return [topic.name for topic in topics]


def test_an_address_is_sealed_and_never_told(kept: Broker, redis_url: str) -> None:
    entry = Entry.objects.get(action="broker.registered")

    assert redis_url not in kept.url
    assert secrets.revealed(kept.url) == redis_url
    assert topics.settings_of(kept).url == redis_url
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
        ({"url": "redis://" + "x" * 5_000}, "url"),
    ],
)
def test_what_makes_no_broker_is_refused_by_its_field(
    operator: Principal, now: datetime, change: dict[str, str], field: str
) -> None:
    told = {"url": "redis://localhost", **change}

    with pytest.raises(Invalid) as wrong:
        add(told.pop("url"), operator, now, **told)

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
def test_an_address_is_refused_with_how_it_is_written(
    operator: Principal, now: datetime, url: str
) -> None:
    with pytest.raises(Invalid, match=r"redis://.*percent-encode") as wrong:
        add(url, operator, now)

    assert wrong.value.field == "url"


def test_a_name_is_taken_once(kept: Broker, operator: Principal, now: datetime) -> None:
    other = add("redis://localhost", operator, now, name="other")

    with pytest.raises(Invalid, match="already"):
        add("redis://localhost", operator, now)
    with pytest.raises(Invalid, match="already"):
        registration.alter(broker=other, name="ours", principal=operator, now=now)


def test_only_what_is_given_is_changed(
    kept: Broker, operator: Principal, now: datetime
) -> None:
    renamed = registration.alter(broker=kept, name="b", principal=operator, now=now)
    options = {"body_field": "payload"}
    registration.alter(broker=renamed, options=options, principal=operator, now=now)
    same = registration.alter(broker=renamed, name="b", principal=operator, now=now)

    broker = Broker.objects.get()
    told = Entry.objects.filter(action="broker.altered").order_by("seq")
    assert (broker.name, broker.url, broker.options) == ("b", kept.url, options)
    assert same == broker
    assert [entry.detail["changed"] for entry in told] == [["name"], ["options"]]


@pytest.mark.parametrize(
    "change", [{"options": {"colour": "red"}}, {"url": "redis://[fe80::1]"}]
)
def test_a_change_that_cannot_work_changes_nothing(
    kept: Broker, operator: Principal, now: datetime, change: dict[str, object]
) -> None:
    with pytest.raises(Invalid):
        registration.alter(broker=kept, principal=operator, now=now, **change)  # type: ignore[arg-type] # of several kinds

    assert Broker.objects.get().url == kept.url
    assert not Entry.objects.filter(action="broker.altered").exists()


@pytest.mark.parametrize(
    "limit",
    [
        {"topics": ("orders.*",)},
        {"scopes": frozenset(Scope) - {Scope.BROKERS_WRITE}},
    ],
)
def test_who_may_not_write_brokers_changes_none(
    kept: Broker, operator: Principal, now: datetime, limit: dict[str, object]
) -> None:
    limited = replace(operator, **limit)  # type: ignore[arg-type] # of several kinds

    with pytest.raises(Forbidden):
        add("redis://localhost", limited, now, name="other")
    with pytest.raises(Forbidden):
        registration.alter(broker=kept, name="other", principal=limited, now=now)
    with pytest.raises(Forbidden):
        adopt(kept, limited, now, "invoices")

    assert list(Broker.objects.values_list("name")) == [("ours",)]
    assert Topic.objects.count() == 0


def test_a_broker_answers_what_it_is(kept: Broker) -> None:
    reached = connectivity.reach(broker=kept)

    assert reached.ok
    assert reached.detail.startswith("Redis ")


def test_a_wrong_password_is_told_without_it(
    redis_url: str, operator: Principal, now: datetime
) -> None:
    parts = urlsplit(redis_url)
    wrong = f"redis://:not%21mine@{parts.hostname}:{parts.port}/1"
    broker = add(wrong, operator, now)

    reached = connectivity.reach(broker=broker)

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
def test_nothing_secret_of_an_address_is_left_in_a_text(url: str) -> None:
    said = f"cannot log in to {url} with p@ss-word, p%40ss-word"

    told = connectivity.concealed(said, url=url)

    assert told == "cannot log in to ••• with •••, •••"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Give a port where somebody listens who never says a word."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_broker_that_says_nothing_is_waited_for_only_so_long(
    operator: Principal, now: datetime, silent_port: int
) -> None:
    broker = add(f"redis://127.0.0.1:{silent_port}", operator, now)

    reached = connectivity.reach(broker=broker, within=0.1)

    assert (reached.ok, reached.detail) == (False, "It did not answer within 0.1 s.")
    assert reached.milliseconds < 20_000


def test_a_variable_that_is_not_there_is_told(
    operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    broker = add("env:BROKER_OURS", operator, now)

    before = connectivity.reach(broker=broker)
    monkeypatch.setenv("BROKER_OURS", redis_url)
    after = connectivity.reach(broker=broker)

    assert broker.url == "env:BROKER_OURS"
    assert (before.ok, "BROKER_OURS" in before.detail) == (False, True)
    assert after.ok


def test_where_an_address_may_lead_is_looked_at_each_time(kept: Broker) -> None:
    sealed = secrets.sealed("redis://169.254.169.254")
    Broker.objects.update(url=sealed)

    reached = connectivity.reach(broker=Broker.objects.get())

    assert not reached.ok
    assert "no broker is" in reached.detail


def test_no_thread_is_left_behind_by_an_answer(kept: Broker) -> None:
    before = threading.active_count()

    for _ in range(connectivity.MOST_ASKED + 1):
        assert connectivity.reach(broker=kept).ok

    assert threading.active_count() <= before + 1


def test_what_a_broker_has_is_found_and_adopted(
    kept: Broker, stream: redis.Redis, operator: Principal, now: datetime
) -> None:
    stream.xadd("orders", {"body": b"1"})
    stream.xadd("orders-poison", {"body": b"1"})
    stream.xadd("plain", {"body": b"1"})

    seen = connectivity.discover(broker=kept)
    registration.adopt_topics(broker=kept, topics=seen, principal=operator, now=now)

    facts = [(each.name, each.dead_letter_queue, each.dead_letters) for each in seen]
    rows = Topic.objects.order_by("name").values_list("name", "dead_letter_queue")
    assert facts == [("orders", "orders-poison", 1), ("plain", "", None)]
    assert list(rows) == [("orders", "orders-poison"), ("plain", "")]


def test_what_is_known_stays_as_people_made_it(
    kept: Broker, operator: Principal, now: datetime
) -> None:
    Topic.objects.create(
        name="mine", native_name="orders", broker=kept, dead_letter_queue="elsewhere"
    )
    Topic.objects.create(name="told", native_name="told")

    names = adopt(kept, operator, now, "orders", "told")

    assert names == ["mine", "told"]
    assert Topic.objects.get(name="mine").dead_letter_queue == "elsewhere"
    assert Topic.objects.get(name="told").broker == kept


def test_the_topic_of_another_broker_is_left_to_it(
    kept: Broker, operator: Principal, now: datetime
) -> None:
    other = add("redis://localhost", operator, now, name="other")
    adopt(kept, operator, now, "orders")

    names = [adopt(other, operator, now, "orders") for _ in "ab"]

    assert names == [["orders@other"]] * 2
    assert Topic.objects.get(name="orders").broker == kept
    assert Topic.objects.get(name="orders@other").native_name == "orders"


@pytest.mark.parametrize("name", ["a\0b", "\udcff"])
def test_a_name_that_is_no_text_is_refused(
    kept: Broker, operator: Principal, now: datetime, name: str
) -> None:
    with pytest.raises(Refused, match="no text"):
        adopt(kept, operator, now, "orders", name)

    assert Topic.objects.count() == 0
