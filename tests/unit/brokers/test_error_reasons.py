"""Errors of brokers, as one short line that Postgres stores."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from apps.brokers.adapters.azure_queue import azure_http_client
from apps.brokers.adapters.rabbitmq import transport
from apps.brokers.adapters.redis_streams import redis_connection
from apps.brokers.adapters.sqs import sqs_calls


def of_azure(text: str) -> str:
    return azure_http_client._first_line(re.fullmatch(rb"(?s)(.*)", text.encode()))


def of_rabbitmq(text: str) -> str:
    return transport.reason_of(OSError(text))


def of_redis(text: str) -> str:
    return redis_connection.reason_of(OSError(text))


def of_sqs(text: str) -> str:
    return sqs_calls.words_of({"Code": text})


@pytest.mark.parametrize("reason", [of_azure, of_rabbitmq, of_redis, of_sqs])
def test_words_of_a_broker_are_one_line_of_300_storable_characters(
    reason: Callable[[str], str],
) -> None:
    assert reason("no\r\n  room \0 here") == "no room \N{SYMBOL FOR NULL} here"
    assert reason("a" * 5_000) == "a" * 300
