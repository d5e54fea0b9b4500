"""Unusable addresses and options of a RabbitMQ are refused at once."""

from __future__ import annotations

import pytest

from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.rabbitmq.address_and_queues import (
    RabbitAddress,
    RabbitQueues,
)
from apps.core.errors import Invalid


def test_an_address_is_parsed_with_defaults() -> None:
    plain = RabbitAddress.of(BrokerSettings(url="amqp://host"))
    full = RabbitAddress.of(
        BrokerSettings(
            url="amqps://a%40b:p%2Fw@host:1234/a%2Fb",
            options={"management_url": "https://other:444/prefix/"},
        )
    )

    assert (plain.user, plain.password, plain.vhost) == ("guest", "guest", "/")
    assert (plain.port, plain.management_url) == (5672, "http://host:15672")
    assert (full.user, full.password, full.vhost) == ("a@b", "p/w", "a/b")
    assert (full.port, full.tls) == (1234, True)
    assert full.management_url == "https://other:444/prefix"
    assert "p/w" not in repr(full)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@host",
        # With a port, as the management plugin's own address has.
        "http://guest:s3cret@host:15672",
        "amqp://guest:s3cret@host:s3cret/",
        "amqp://guest:s3cret@[host/",
        "amqp://guest:s3cret@host/a/b",
        "amqp://guest:s3cret@host/?heartbeat=s3cret",
        "amqp://guest:s3cret#@host/",
        "amqp://",
    ],
)
def test_an_unusable_address_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(Invalid, match="url") as raised:
        RabbitAddress.of(BrokerSettings(url=url))

    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"managment_url": "http://host"},
        {"management_url": 7},
        {"management_url": "ftp://host"},
        {"management_url": "http://user:s3cret@host"},
        {"management_url": "http://host:x"},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(Invalid, match="options") as raised:
        RabbitAddress.of(BrokerSettings(url="amqp://host", options=options))

    assert "s3cret" not in str(raised.value)


def test_a_topic_and_its_dead_letters_are_two_queues() -> None:
    assert RabbitQueues.of(TopicSettings(topic="orders")).dead_letters == "orders-dead"
    for settings in (
        TopicSettings(topic="orders-dead"),
        TopicSettings(topic="orders", dead_letter_queue="orders"),
        TopicSettings(topic="orders", dead_letter_queue="d" * 256),
    ):
        with pytest.raises(Invalid, match="dead_letter_queue"):
            RabbitQueues.of(settings)
    with pytest.raises(Invalid, match="options"):
        RabbitQueues.of(TopicSettings(topic="orders", options={"prefetch": 7}))
