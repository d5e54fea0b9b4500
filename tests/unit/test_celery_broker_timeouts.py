"""Timeouts for Celery's broker, in the options of each transport."""

from __future__ import annotations

from typing import Any

import amqp
import pytest
from redis import Redis

from apps.core.celery_broker_timeouts import timeouts


@pytest.mark.parametrize("url", ["redis://h:1/0", "rediss://h:1/0"])
def test_redis_understands_its_limits(url: str) -> None:
    limits: dict[str, Any] = {**timeouts(url)}

    client = Redis(host="127.0.0.1", **limits)
    options = client.connection_pool.connection_kwargs
    assert limits
    assert options.items() >= limits.items()


def test_rabbitmq_understands_its_limits() -> None:
    limits: dict[str, Any] = {**timeouts("amqp://h//")}

    connection = amqp.Connection("127.0.0.1:1", **limits)

    assert (connection.connect_timeout, connection.read_timeout) == (1, 1)


def test_an_unknown_broker_keeps_its_own() -> None:
    assert timeouts("sqs://") == {}
