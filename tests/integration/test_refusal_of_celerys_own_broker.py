"""Celery's broker cannot be used for messages; another database beside it can."""

from __future__ import annotations

import os
import socket
from datetime import datetime

import pytest
from pytest_django import Settings

from apps.brokers import refusal_of_celerys_own_broker, sealed_addresses
from apps.brokers.models import Broker
from apps.brokers.services import broker_registration
from apps.brokers.services.topics_and_routing_publisher import settings_of
from apps.core.errors import Invalid
from apps.team.rights import Principal


def is_refused(url: str, *, resolve: bool = False) -> bool:
    try:
        refusal_of_celerys_own_broker.refuse(url, resolve=resolve)
    except Invalid as wrong:
        return wrong.field == "url"
    return False


@pytest.mark.parametrize(
    ("own", "url", "refused"),
    [
        ("redis://:p@h:6379/0", "redis://h", True),
        ("redis://:p@h:6379/0", "redis://u:q@H.:6379/00", True),
        ("redis://:p@h:6379/0", "rediss://h:6379/0", True),
        ("redis://:p@h:6379/0", "redis://h:6379/1", False),
        ("redis://:p@h:6379/0", "redis://h:6380/0", False),
        ("redis://:p@h:6379/0", "redis://other:6379/0", False),
        ("redis://:p@h:6379/0", "amqp://h:6379/0", False),
        ("redis://127.0.0.1:7/0", "redis://localhost:7", True),
        ("redis://127.0.0.1:7/0", "redis://[::1]:7", True),
        ("redis://127.0.0.1:7/0", "redis://0x7f000001:7", True),
        ("redis://127.0.0.1:7/0", "redis://localhost:7/1", False),
        ("amqp://u:p@mq//", "amqp://v:q@mq", True),
        ("amqp://u:p@mq/celery", "amqp://v:q@mq:5672/celery", True),
        ("pyamqp://u:p@mq//", "amqp://v:q@mq:5672//", True),
        ("amqp://u:p@mq/a%2Fb", "amqp://v:q@mq:5672/a%2fb", True),
        ("amqp://u:p@mq/celery", "amqp://v:q@mq:5672/orders", False),
        ("redis://a:1/0;redis://b:1/0", "redis://b:1", True),
        ("sentinel://a:1/0", "redis://a:1/0", False),
        ("", "redis://a:1/0", False),
        ("redis://h", "redis://h/text", False),
        ("redis://h", "UseDevelopmentStorage=true", False),
    ],
)
def test_celerys_broker_is_refused_by_host_port_and_database(
    settings: Settings, own: str, url: str, *, refused: bool
) -> None:
    settings.CELERY_BROKER_URL = own

    assert is_refused(url) is refused


def test_celerys_broker_is_refused_by_another_name_of_its_host(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved_hosts: list[str] = []

    def resolved(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        resolved_hosts.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    settings.CELERY_BROKER_URL = "redis://tasks:1/0"

    assert is_refused("redis://alias:1/0", resolve=True)
    assert resolved_hosts == ["alias", "tasks"]
    assert not is_refused("redis://alias:1/2", resolve=True)


@pytest.mark.django_db
def test_a_broker_on_celerys_database_is_neither_added_nor_used(
    operator: Principal, now: datetime
) -> None:
    own = os.environ["CELERY_BROKER_URL"]

    with pytest.raises(Invalid, match="choose another database") as wrong:
        broker_registration.add(
            name="ours",
            kind="redis_streams",
            url=own,
            options={},
            principal=operator,
            now=now,
        )
    with pytest.raises(Invalid, match="choose another database"):
        settings_of(Broker(kind="redis_streams", url=sealed_addresses.seal(own)))

    assert own not in str(wrong.value)
    assert not Broker.objects.exists()


def test_the_database_of_the_sample_beside_it_is_used() -> None:
    sample = Broker(kind="redis_streams", url="env:POISONWEB_REDIS_URL", is_sample=True)

    assert settings_of(sample).url == os.environ["POISONWEB_REDIS_URL"]
