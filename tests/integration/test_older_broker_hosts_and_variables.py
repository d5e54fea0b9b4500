"""Existing brokers keep working by an allow-list; new ones must obey the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest
from django.db import connection
from pytest_django import Settings

from apps.audit.models import Entry
from apps.brokers import allow_lists_of_older_brokers, sealed_addresses
from apps.brokers.models import Broker
from apps.brokers.services import broker_registration
from apps.brokers.services.topics_and_routing_publisher import settings_of
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Invalid
from apps.team.rights import Principal

pytestmark = pytest.mark.django_db

SET_UP = Actor.system("set-up")
ELSEWHERE = {"management_url": "http://elsewhere.example:15672"}


def broker_of_before(
    url: str, *, kind: str = "rabbitmq", name: str = "old", **options: object
) -> Broker:
    return Broker.objects.create(
        name=name, kind=kind, url=url, options=options, predates_address_rules=True
    )


def written(now: datetime) -> Broker:
    allow_lists_of_older_brokers.write_of_older_brokers(actor=SET_UP, now=now)
    return Broker.objects.get()


def test_a_broker_that_the_former_release_adds_after_the_upgrade_is_not_marked() -> (
    None
):
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO brokers_broker (name, kind, url, options)
            VALUES ('new', 'redis_streams', 'env:CORP_REDIS', '{}')
            """
        )

    assert not Broker.objects.get().predates_address_rules


def test_the_upgrade_lists_hosts_and_variables_once_and_audits_them(
    now: datetime,
) -> None:
    broker_of_before(sealed_addresses.seal("amqp://u:p@MQ.internal/"), **ELSEWHERE)
    broker_of_before("env:CORP_REDIS", kind="redis_streams", name="redis")
    broker_of_before("env:BROKER_ORDERS", kind="redis_streams", name="fine")

    numbers = [
        allow_lists_of_older_brokers.write_of_older_brokers(actor=SET_UP, now=now)
        for _ in "ab"
    ]

    lists = dict(Broker.objects.values_list("name", "allowed_unconfirmed"))
    entries = Entry.objects.filter(action="broker.allowance_written").order_by("seq")
    assert numbers == [3, 0]
    assert lists == {
        "old": ["elsewhere.example:15672", "mq.internal:5672"],
        "redis": ["env:CORP_REDIS"],
        "fine": [],
    }
    assert [(each.subject, each.detail["entries"]) for each in entries] == [
        ("broker:old", lists["old"]),
        ("broker:redis", lists["redis"]),
    ]


@pytest.mark.parametrize(
    ("url", "entries"),
    [
        (
            "sqs://eu-central-1",
            ["169.254.169.254:80", "elsewhere:1", "sqs.eu-central-1.amazonaws.com:443"],
        ),
        ("sqs://k:s@us-east-1", ["elsewhere:1", "sqs.us-east-1.amazonaws.com:443"]),
    ],
)
def test_an_existing_broker_keeps_the_rights_of_this_machine_after_the_upgrade(
    now: datetime, url: str, entries: list[str]
) -> None:
    endpoint = {"endpoint_url": "http://elsewhere:1"}
    broker_of_before(sealed_addresses.seal(url), kind="sqs", **endpoint)

    after = written(now)

    assert after.allowed_unconfirmed == entries
    assert settings_of(after).target.may_ask_metadata is (len(entries) == 3)


@pytest.mark.parametrize(
    "name",
    [
        *("DATABASE_URL", "CELERY_BROKER_URL", "POISONWEB_SECRET_KEY"),
        *("POISONWEB_ADMIN_PASSWORD",),
    ],
)
def test_no_setting_of_poisonweb_gets_into_an_allow_list(
    monkeypatch: pytest.MonkeyPatch, now: datetime, name: str
) -> None:
    monkeypatch.setenv(name, "amqp://celery:sesame@mq/")
    before = broker_of_before(f"env:{name}")

    after = written(now)

    assert after.allowed_unconfirmed == []
    for broker in (before, after):
        with pytest.raises(Invalid, match="does not begin with BROKER_") as wrong:
            settings_of(broker)
        assert "sesame" not in str(wrong.value)


def test_an_existing_broker_keeps_its_settings_when_its_list_is_written(
    monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    monkeypatch.setenv("CORP_MQ", "amqp://u:p@mq/")
    before = broker_of_before("env:CORP_MQ", **ELSEWHERE)

    after = written(now)

    assert settings_of(before) == settings_of(after)
    assert settings_of(after).options == ELSEWHERE


def test_a_host_that_the_setting_refused_before_the_upgrade_is_not_listed(
    settings: Settings, now: datetime
) -> None:
    settings.POISONWEB_BROKER_HOSTS = ("mq",)
    broker_of_before(sealed_addresses.seal("amqp://u:p@other/"))

    assert written(now).allowed_unconfirmed == []


def test_striking_an_entry_out_stops_its_broker(
    monkeypatch: pytest.MonkeyPatch, operator: Principal, now: datetime
) -> None:
    monkeypatch.setenv("CORP_MQ", "amqp://u:p@mq/")
    broker_of_before("env:CORP_MQ", **ELSEWHERE)
    broker = written(now)
    chosen = [(broker.pk, entry) for entry in broker.allowed_unconfirmed]
    for entry in chosen:
        allow_lists_of_older_brokers.confirm(
            chosen=[entry], principal=operator, now=now
        )
    confirmed = Broker.objects.get()

    allow_lists_of_older_brokers.strike(chosen=chosen, principal=operator, now=now)

    struck = Broker.objects.get()
    trail = Entry.objects.order_by("seq").values_list("action", "detail")
    assert settings_of(confirmed).options == ELSEWHERE
    assert (confirmed.allowed_unconfirmed, len(confirmed.allowed_confirmed)) == ([], 2)
    assert (struck.allowed_unconfirmed, struck.allowed_confirmed) == ([], [])
    with pytest.raises(Invalid, match="CORP_MQ does not begin with BROKER_"):
        settings_of(struck)
    assert [
        (action, detail["entry"])
        for action, detail in trail
        if action != "broker.allowance_written"
    ] == [
        *(("broker.allowance_confirmed", entry) for _, entry in chosen),
        *(("broker.allowance_struck", entry) for _, entry in chosen),
    ]


@pytest.mark.parametrize(
    "act", [allow_lists_of_older_brokers.confirm, allow_lists_of_older_brokers.strike]
)
def test_deciding_on_a_missing_entry_is_absent_and_changes_nothing(
    operator: Principal, now: datetime, act: Callable[..., None]
) -> None:
    broker_of_before("env:CORP_MQ")
    broker = written(now)
    chosen = [(broker.pk, "env:CORP_MQ"), (broker.pk, "env:OTHER")]

    with pytest.raises(Absent):
        act(chosen=chosen, principal=operator, now=now)

    assert Broker.objects.get().allowed_unconfirmed == ["env:CORP_MQ"]
    assert Entry.objects.count() == 1


@pytest.mark.parametrize(
    "act", [allow_lists_of_older_brokers.confirm, allow_lists_of_older_brokers.strike]
)
def test_a_key_for_some_topics_cannot_decide_on_entries(
    operator: Principal, now: datetime, act: Callable[..., None]
) -> None:
    broker_of_before("env:CORP_MQ")
    limited = replace(operator, topics=("orders.*",))

    with pytest.raises(Forbidden):
        act(chosen=[(written(now).pk, "env:CORP_MQ")], principal=limited, now=now)

    assert allow_lists_of_older_brokers.entries(limited) == []


@pytest.fixture
def rabbit(operator: Principal, now: datetime) -> Broker:
    return broker_registration.add(
        name="ours",
        kind="rabbitmq",
        url="amqp://u:sesame@mq.example/",
        options={"management_url": "http://mq.example:15672"},
        principal=operator,
        now=now,
    )


def test_an_option_that_names_another_host_asks_for_the_address_again(
    operator: Principal, now: datetime
) -> None:
    sqs = broker_registration.add(
        name="sqs",
        kind="sqs",
        url="sqs://key:sesame@eu-central-1",
        options={},
        principal=operator,
        now=now,
    )
    moved = {"endpoint_url": "https://elsewhere.example"}

    with pytest.raises(Invalid, match="enter the address again") as wrong:
        broker_registration.alter(
            broker=sqs, options=moved, principal=operator, now=now
        )
    again = broker_registration.alter(
        broker=sqs,
        url="sqs://key:sesame@eu-central-1",
        options=moved,
        principal=operator,
        now=now,
    )
    back = broker_registration.alter(
        broker=again, options={}, principal=operator, now=now
    )

    assert wrong.value.field == "url"
    assert (again.options, back.options) == (moved, {})


def test_management_on_another_host_is_refused_unless_the_setting_allows_it(
    rabbit: Broker, operator: Principal, now: datetime, settings: Settings
) -> None:
    def alter() -> Broker:
        return broker_registration.alter(
            broker=rabbit,
            url="amqp://u:sesame@mq.example/",
            options=ELSEWHERE,
            principal=operator,
            now=now,
        )

    with pytest.raises(Invalid, match="another host than that of the address"):
        alter()
    settings.POISONWEB_BROKER_HOSTS = ("mq.example", "elsewhere.example:15672")

    assert alter().options == ELSEWHERE


def test_another_host_beside_a_variable_is_refused_unless_the_setting_allows_it(
    monkeypatch: pytest.MonkeyPatch, operator: Principal, now: datetime
) -> None:
    monkeypatch.setenv("BROKER_MQ", "amqp://u:sesame@mq.example/")

    with pytest.raises(Invalid, match="another host than that of the address"):
        broker_registration.add(
            name="ours",
            kind="rabbitmq",
            url="env:BROKER_MQ",
            options=ELSEWHERE,
            principal=operator,
            now=now,
        )


@pytest.mark.parametrize(
    "name",
    ["CELERY_BROKER_URL", "DATABASE_URL", "POISONWEB_REDIS_URL", "PATH", "broker_x"],
)
def test_a_new_broker_reads_no_variable_without_the_prefix(
    operator: Principal, now: datetime, name: str
) -> None:
    with pytest.raises(Invalid, match="enter env:BROKER_ORDERS") as wrong:
        broker_registration.add(
            name="ours",
            kind="redis_streams",
            url=f"env:{name}",
            options={},
            principal=operator,
            now=now,
        )

    assert wrong.value.field == "url"
    assert not Broker.objects.exists()


def test_the_sample_reads_its_own_variable(redis_url: str) -> None:
    sample = Broker(kind="redis_streams", url="env:POISONWEB_REDIS_URL", is_sample=True)

    assert settings_of(sample).url


def test_changing_an_existing_broker_adds_nothing_to_its_list(
    monkeypatch: pytest.MonkeyPatch, operator: Principal, now: datetime
) -> None:
    monkeypatch.setenv("CORP_MQ", "amqp://u:p@mq/")
    broker = broker_of_before("env:CORP_MQ")

    with pytest.raises(Invalid, match="another host than that of the address"):
        broker_registration.alter(
            broker=broker, options=ELSEWHERE, principal=operator, now=now
        )
    renamed = broker_registration.alter(
        broker=Broker.objects.get(), name="renamed", principal=operator, now=now
    )

    assert renamed.allowed_unconfirmed == ["env:CORP_MQ"]
    assert not renamed.predates_address_rules
