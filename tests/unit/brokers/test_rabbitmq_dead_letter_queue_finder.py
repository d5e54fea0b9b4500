"""The dead-letter queue of a queue, by RabbitMQ's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from apps.brokers.adapters.rabbitmq.dead_letter_queue_finder import (
    RabbitExchange,
    RabbitQueue,
    dead_letter_queue_of,
)

BINDINGS = [
    {"destination": name, "destination_type": kind, "routing_key": key}
    for name, kind, key in (
        ("dead-b", "queue", "orders"),
        ("dead-a", "queue", "other"),
        ("dead-c", "queue", "a.*.#"),
        ("elsewhere", "exchange", "orders"),
    )
]
ONE = BINDINGS[1:2]


@pytest.mark.parametrize(
    ("settings", "kind", "bindings", "expected"),
    [
        ({}, "direct", BINDINGS, ""),
        ({"dead-letter-exchange": ""}, "direct", BINDINGS, ""),
        (
            {"dead-letter-exchange": "", "dead-letter-routing-key": "d"},
            "direct",
            BINDINGS,
            "d",
        ),
        ({"dead-letter-exchange": "x"}, "direct", BINDINGS, "dead-b"),
        ({"dead-letter-exchange": "x"}, "direct", ONE, "dead-a"),
        (
            {"dead-letter-exchange": "x", "dead-letter-routing-key": "none"},
            "direct",
            ONE,
            "",
        ),
        ({"dead-letter-exchange": "x"}, "fanout", BINDINGS, "dead-a"),
        (
            {"dead-letter-exchange": "x", "dead-letter-routing-key": "a.b"},
            "topic",
            BINDINGS,
            "dead-c",
        ),
        (
            {"dead-letter-exchange": "x", "dead-letter-routing-key": "a.b.c.d"},
            "topic",
            BINDINGS,
            "dead-c",
        ),
        (
            {"dead-letter-exchange": "x", "dead-letter-routing-key": "a"},
            "topic",
            BINDINGS,
            "",
        ),
        ({"dead-letter-exchange": "gone"}, "direct", BINDINGS, ""),
    ],
)
@pytest.mark.parametrize("by_policy", [False, True])
def test_the_dead_letter_queue_is_found_by_exchange_and_bindings(
    *,
    settings: Mapping[str, str],
    kind: str,
    bindings: list[Mapping[str, Any]],
    expected: str,
    by_policy: bool,
) -> None:
    details: dict[str, Any] = {"name": "orders", "arguments": []}
    if by_policy:
        details["effective_policy_definition"] = settings
    else:
        details["arguments"] = {f"x-{name}": value for name, value in settings.items()}
    exchange = RabbitExchange.of(kind, bindings)

    name = dead_letter_queue_of(RabbitQueue.of(details), {"x": exchange}.get)

    assert name == expected


def test_arguments_win_over_policies() -> None:
    declared = RabbitQueue.of(
        {
            "name": "orders",
            "arguments": {"x-delivery-limit": 3},
            "effective_policy_definition": {"delivery-limit": 9},
        }
    )

    assert declared.delivery_limit == 3
