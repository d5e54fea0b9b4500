"""Outboxes are added, changed and removed; addresses are checked, sealed, not shown."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.outbox.models import Outbox
from apps.outbox.outbox_settings_dataclass import OutboxSettings
from apps.outbox.producer_database_url import ProducerDatabase
from apps.outbox.services import outbox_registration
from apps.outbox.services.outbox_registration import (
    add_outbox,
    change_outbox,
    remove_outbox,
    visible_outbox,
)
from apps.outbox.table_of_another_outbox import TableOwners
from apps.team.rights import Principal, Scope
from tests.integration.outbox.outbox_builders import ADMIN, NOW, events, outbox_at
from tests.postgres_connection_limit_and_lock_waits import waits_for_a_lock
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db

URL = "postgresql://sweeper:sesame@127.0.0.1:5432/shop"


def add(url: str = "", *, name: str = "shop", **settings: Any) -> Outbox:
    """Add an outbox, in a database of its own unless its address is given."""
    events()
    url = url or f"postgresql://sweeper:sesame@127.0.0.1:5432/{name}?sslmode=disable"
    return add_outbox(
        name=name,
        settings=OutboxSettings(url=url, broker="events", **settings),
        principal=ADMIN,
        now=NOW,
    )


def test_an_outbox_has_a_topic_and_its_address_is_sealed() -> None:
    outbox = outbox_at(URL, most_lag=100)

    assert outbox.topic.name == "outbox/shop"
    assert outbox.url.startswith("sealed:")
    assert ProducerDatabase.read(outbox.url).password == "sesame"
    assert outbox.activity.noted_at is None
    [entry] = Entry.objects.filter(subject="outbox:shop")
    assert "sesame" not in json.dumps(entry.detail)
    assert entry.detail["most_lag"] == 100


def test_a_change_is_audited_without_the_address_and_counts_the_version() -> None:
    outbox_at(URL)
    other = "postgres://sweeper:mellon@127.0.0.1/shop?sslmode=disable"
    changes = {"url": other, "window": 7, "is_paused": True}

    change_outbox(name="shop", changes=changes, version=1, principal=ADMIN, now=NOW)

    outbox = visible_outbox(name="shop", principal=ADMIN)
    database = ProducerDatabase.read(outbox.url)
    assert (database.password, database.port) == ("mellon", 5432)
    assert (outbox.window, outbox.is_paused, outbox.version) == (7, True, 2)
    entry = Entry.objects.filter(subject="outbox:shop").order_by("-seq")[0]
    assert entry.detail["window"] == [500, 7]
    assert set(entry.detail) == {"url", "window", "is_paused"}
    assert "mellon" not in json.dumps(entry.detail)
    with pytest.raises(Refused, match="changed meanwhile"):
        change_outbox(
            name="shop", changes={"window": 9}, version=1, principal=ADMIN, now=NOW
        )


def test_a_change_without_a_difference_is_no_decision() -> None:
    outbox_at(URL)

    change_outbox(name="shop", changes={"window": 500}, principal=ADMIN, now=NOW)

    assert visible_outbox(name="shop", principal=ADMIN).version == 1
    assert Entry.objects.filter(subject="outbox:shop").count() == 1


def test_a_removed_outbox_leaves_its_topic() -> None:
    outbox_at(URL)

    remove_outbox(name="shop", principal=ADMIN, reason="over", now=NOW)

    assert not Outbox.objects.exists()
    assert Topic.objects.filter(name="outbox/shop").exists()
    assert Entry.objects.order_by("-seq")[0].reason == "over"


def test_more_outboxes_than_a_sweeper_empties_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_registration, "MOST_OUTBOXES", 2)
    add(name="one")
    add(name="two", is_paused=True)

    with pytest.raises(Refused, match="There are 2 outboxes already"):
        add(name="three")

    assert not Topic.objects.filter(name="outbox/three").exists()
    remove_outbox(name="one", principal=ADMIN, now=NOW)
    add(name="three")


@pytest.mark.django_db(transaction=True)
def test_who_adds_the_last_outbox_at_the_same_time_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_registration, "MOST_OUTBOXES", 1)
    others = ThreadPoolExecutor(1)

    def add_two() -> str:
        try:
            add(name="two")
        except Refused as refusal:
            return str(refusal)
        finally:
            connections.close_all()
        return "added"

    with others, transaction.atomic():
        events()
        add_outbox(
            name="one",
            settings=OutboxSettings(url=f"{URL}?sslmode=disable", broker="events"),
            principal=ADMIN,
            now=NOW,
        )
        second = others.submit(add_two)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
    assert "1 outboxes already" in second.result()


@pytest.mark.django_db(transaction=True)
def test_who_changes_what_another_person_removes_meanwhile_is_told_so() -> None:
    add()

    def change() -> str:
        try:
            change_outbox(name="shop", changes={"window": 7}, principal=ADMIN, now=NOW)
        except Absent as absent:
            return str(absent)
        finally:
            connections.close_all()
        return "changed"

    with ThreadPoolExecutor(1) as others:
        with transaction.atomic():
            remove_outbox(name="shop", principal=ADMIN, now=NOW)
            changed = others.submit(change)
            wait_until(waits_for_a_lock)
        assert changed.result() == "There is no outbox shop here."


@pytest.mark.parametrize(
    "url",
    [
        "mysql://a:b@127.0.0.1/shop",
        "postgresql://127.0.0.1/shop",
        "postgresql://a:b@/shop",
        "postgresql://a:b@%2Ftmp/shop",
        "postgresql://a:b@127.0.0.1,10.0.0.1/shop",
        "postgresql://a:b@127.0.0.1",
        "postgresql://a:b@127.0.0.1/shop/other",
        "postgresql://a:b@127.0.0.1:99999/shop",
        "postgresql://a:b@127.0.0.1/shop?host=10.0.0.1",
        "postgresql://a:b@127.0.0.1/shop?hostaddr=10.0.0.1",
        "postgresql://a:b@127.0.0.1/shop?service=x",
        "postgresql://a:b@127.0.0.1/shop?sslmode=prefer",
        "postgresql://a:b@127.0.0.1/shop?options=-csearch_path%3Dx",
        "host=127.0.0.1 dbname=shop user=a",
        "sealed:nonsense",
        "env:HOME",
        "postgresql://a:b@127.0.0.1/shop\n",
        "postgresql://a%00:b@127.0.0.1/shop",
        "postgresql://" + "a" * 4_001,
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(Invalid) as refusal:
        add(url)

    assert refusal.value.field == "url"
    assert not Outbox.objects.exists()


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "0xA9FEA9FE", "2852039166", "[::ffff:169.254.169.254]"),
        *("[fe80::1]", "0.0.0.0", "10.0.0.1", "192.168.1.1", "100.100.100.200"),
    ],
)
def test_forbidden_networks_are_refused(host: str) -> None:
    with pytest.raises(Invalid):
        add(f"postgresql://a:b@{host}/shop")


@override_settings(POISONWEB_LOOPBACK_BROKERS=False)
def test_this_machine_needs_the_permission_of_the_operator() -> None:
    with pytest.raises(Invalid, match="this machine itself"):
        add()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 0),
        ("window", 10_001),
        ("most_lag", 0),
        ("most_lag", 2**53 + 1),
        ("most_depth", 0),
        ("most_depth", 2**53 + 1),
        ("sent_rows_days", 0),
        ("sent_ids_days", 6),
        ("schema", "x" * 64),
        ("broker", ""),
    ],
)
def test_settings_out_of_bounds_name_their_field(field: str, value: object) -> None:
    outbox_at(URL)

    with pytest.raises(Invalid) as refusal:
        change_outbox(name="shop", changes={field: value}, principal=ADMIN, now=NOW)

    assert refusal.value.field == field


def test_a_broker_must_be_registered() -> None:
    outbox_at(URL)

    with pytest.raises(Invalid, match="no broker other"):
        change_outbox(
            name="shop", changes={"broker": "other"}, principal=ADMIN, now=NOW
        )


def test_one_table_has_one_outbox() -> None:
    add(name="billing", schema="billing")
    shop = add()

    for url in (
        f"{URL}?sslmode=disable",
        "postgresql://other:x@127.0.0.1/shop",  # the usual port
    ):
        for schema in ("", "public"):
            with pytest.raises(Invalid, match="the outbox shop has this table") as no:
                add(url, name="second", schema=schema)
            assert no.value.field == "url"
    assert not Topic.objects.filter(name="outbox/second").exists()
    second = add(f"{URL}?sslmode=disable", name="second", schema="second")
    for changes in ({"schema": ""}, {"schema": "public", "window": 9}):
        with pytest.raises(Invalid, match="the outbox shop has this table") as no:
            change_outbox(name="second", changes=changes, principal=ADMIN, now=NOW)
        assert no.value.field == "schema"
    billing = f"{URL.removesuffix('shop')}billing"
    with pytest.raises(Invalid, match="the outbox billing has this table") as no:
        change_outbox(
            name="second",
            changes={"url": billing, "schema": "billing"},
            principal=ADMIN,
            now=NOW,
        )
    assert no.value.field == "url"
    second.refresh_from_db()
    assert (second.schema, second.version) == ("second", 1)
    change_outbox(
        name="shop",
        changes={"url": "postgresql://new:x@127.0.0.1/shop", "schema": "public"},
        principal=ADMIN,
        now=NOW,
    )
    shop.refresh_from_db()
    assert shop.version == 2


def test_an_outbox_that_one_may_not_see_is_not_named() -> None:
    add()
    elsewhere = Principal(
        actor=Actor("key:k"), scopes=frozenset(Scope), topics=("outbox/second",)
    )

    with pytest.raises(Invalid, match="an outbox that you do not see has this table"):
        add_outbox(
            name="second",
            settings=OutboxSettings(url=f"{URL}?sslmode=disable", broker="events"),
            principal=elsewhere,
            now=NOW,
        )


def test_a_table_that_another_change_made_another_one_meanwhile_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add()
    owners_of = outbox_registration._owners

    def owners_before_another_change(*values: Any) -> TableOwners:
        owners = owners_of(*values)
        Outbox.objects.update(schema="other")
        return owners

    monkeypatch.setattr(outbox_registration, "_owners", owners_before_another_change)

    with pytest.raises(Refused, match="shop was changed meanwhile"):
        change_outbox(
            name="shop",
            changes={"url": f"{URL}?sslmode=disable"},
            principal=ADMIN,
            now=NOW,
        )

    assert Outbox.objects.get().schema == "other"


@pytest.mark.django_db(transaction=True)
def test_of_two_who_add_one_table_at_the_same_time_one_is_refused() -> None:
    def add_second() -> str:
        try:
            add(f"{URL}?sslmode=disable", name="second")
        except Invalid as refusal:
            return str(refusal)
        finally:
            connections.close_all()
        return "added"

    with ThreadPoolExecutor(1) as others:
        with transaction.atomic():
            add()
            second = others.submit(add_second)
            wait_until(waits_for_a_lock)
        assert "the outbox shop has this table" in second.result()


@pytest.mark.parametrize(
    ("count", "tried", "seconds"), [(1, 1, 5), (2, 2, 5), (4, 4, 2), (100, 4, 2)]
)
def test_few_addresses_of_a_name_are_tried_in_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, count: int, tried: int, seconds: int
) -> None:
    addresses = [f"127.0.1.{number + 7}" for number in range(count)]

    def look_up(*_: object, **__: object) -> list[Any]:
        return [(None, None, None, "", (each, 5432)) for each in addresses]

    monkeypatch.setattr("socket.getaddrinfo", look_up)

    database = ProducerDatabase.read("postgresql://a:b@db.example.com/shop")
    parameters = database.parameters(purpose="test", settings={})

    assert parameters["hostaddr"].split(",") == addresses[:tried]
    assert parameters["host"].split(",") == ["db.example.com"] * tried
    assert parameters["connect_timeout"] == seconds


def test_names_are_unique_and_plain() -> None:
    add()
    with pytest.raises(Refused, match="already") as refused:
        add()
    assert refused.value.field == "name"
    for name in ("", "Shop", "a b", "-a", "a" * 101, "ä"):
        with pytest.raises(Invalid):
            add(name=name)


def test_rights_and_topics_decide_who_sees_and_changes_an_outbox() -> None:
    outbox_at(URL)
    reader = Principal(actor=Actor("user:b"), scopes=frozenset({Scope.BROKERS_READ}))
    elsewhere = Principal(
        actor=Actor("key:k"), scopes=frozenset(Scope), topics=("orders",)
    )

    with pytest.raises(Forbidden):
        change_outbox(name="shop", changes={"window": 9}, principal=reader, now=NOW)
    with pytest.raises(Forbidden):
        remove_outbox(name="shop", principal=reader, now=NOW)
    with pytest.raises(Absent):
        visible_outbox(name="shop", principal=elsewhere)
    with pytest.raises(Absent):
        remove_outbox(name="shop", principal=elsewhere, now=NOW)
