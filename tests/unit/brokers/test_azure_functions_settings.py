"""Settings of Azure Functions, as the article prints them and as people type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.azure_queue.message_text import Encoding
from apps.brokers.adapters.azure_queue.settings import (
    AzureQueueSettings,
    settings_from_host_json,
)
from apps.core.errors import Invalid

# As printed, without the outer braces of the file.
AS_PRINTED = """
"extensions": {
"queues": { // Queue settings...
"maxPollingInterval": "00:00:10", // Default: 00:00:01
"visibilityTimeout": "00:00:10", // Default: 00:00:00
"batchSize": 4, // Default: 16
"maxDequeueCount": 5, // Default: 5
"newBatchThreshold": 2 // Default: 8
}
}
"""

WHOLE_FILE = """\ufeff{
  /* the host of
     billing */
  "version": "2.0",
  "logging": {"logLevel": {"default": "Information // not a comment"}},
  "extensions": {
    "http": {"routePrefix": "api"},
    "queues": {
      "maxPollingInterval": "00:00:02.5",
      "visibilityTimeout": "1.02:03:04",
      "maxDequeueCount": 3,
      "messageEncoding": "None",
    },
  },
}
"""


def test_the_settings_as_the_article_prints_them() -> None:
    options = settings_from_host_json(AS_PRINTED)

    assert options == {
        "maxPollingInterval": "00:00:10",
        "visibilityTimeout": "00:00:10",
        "batchSize": 4,
        "maxDequeueCount": 5,
        "newBatchThreshold": 2,
    }
    assert parsed(options=options) == AzureQueueSettings(
        topic="request-queue-1",
        poison_queue="request-queue-1-poison",
        max_dequeue_count=5,
        visibility_timeout=10,
        batch_size=4,
        new_batch_threshold=2,
        max_polling_interval=10,
    )


def test_a_whole_host_json_with_comments_and_last_commas() -> None:
    options = settings_from_host_json(WHOLE_FILE)
    settings = parsed(options=options)

    assert options == {
        "maxPollingInterval": "00:00:02.500",
        "visibilityTimeout": "1.02:03:04",
        "maxDequeueCount": 3,
        "messageEncoding": "none",
    }
    assert settings.visibility_timeout == ((24 + 2) * 60 + 3) * 60 + 4
    assert settings.max_polling_interval == 2.5
    assert settings.message_encoding is Encoding.NONE
    assert settings.max_dequeue_count == 3


def test_the_defaults_are_those_of_the_article() -> None:
    settings = parsed()

    assert (settings.max_dequeue_count, settings.visibility_timeout) == (5, 0)
    assert (settings.batch_size, settings.new_batch_threshold) == (16, 8)
    assert (settings.max_polling_interval, settings.hidden_for) == (1, 60)
    assert settings.message_encoding is settings.usual_encoding is Encoding.BASE64


def test_durations_may_be_plain_seconds() -> None:
    settings = parsed(options={"visibilityTimeout": 1.5, "maxPollingInterval": 2})

    assert (settings.visibility_timeout, settings.max_polling_interval) == (1.5, 2)


def test_a_queue_writes_as_its_broker_does_unless_it_says_so() -> None:
    broker = BrokerSettings(url="", options={"messageEncoding": "none"})
    topic = TopicSettings(topic="orders", options={"messageEncoding": "base64"})

    usual = AzureQueueSettings.of_topic(broker, TopicSettings(topic="orders"))
    other = AzureQueueSettings.of_topic(broker, topic)

    assert usual.message_encoding is usual.usual_encoding is Encoding.NONE
    assert (other.message_encoding, other.usual_encoding) == (
        Encoding.BASE64,
        Encoding.NONE,
    )


@pytest.mark.parametrize(
    ("options", "field", "why"),
    [
        ({"batchSize": 33}, "batchSize", "is 33: use 1 to 32"),
        ({"batchSize": 0}, "batchSize", "use 1 to 32"),
        ({"batchSize": True}, "batchSize", "whole number"),
        ({"batchSize": "16"}, "batchSize", "whole number"),
        ({"batchSize": 16.0}, "batchSize", "whole number"),
        ({"maxDequeueCount": 0}, "maxDequeueCount", "use 1 to"),
        ({"newBatchThreshold": -1}, "newBatchThreshold", "use 0 to"),
        ({"visibilityTimeout": "10"}, "visibilityTimeout", "hh:mm:ss"),
        ({"visibilityTimeout": "00:60:00"}, "visibilityTimeout", "hh:mm:ss"),
        (
            {"visibilityTimeout": "00:00:1\N{THAI DIGIT ZERO}"},
            "visibilityTimeout",
            "hh:mm:ss",
        ),
        ({"visibilityTimeout": None}, "visibilityTimeout", "hh:mm:ss"),
        ({"visibilityTimeout": float("nan")}, "visibilityTimeout", "hh:mm:ss"),
        (
            {"visibilityTimeout": "8.00:00:00"},
            "visibilityTimeout",
            "is 8.00:00:00: use 00:00:00 to 7.00:00:00",
        ),
        ({"maxPollingInterval": 0}, "maxPollingInterval", "use 00:00:00.100 to"),
        # From version 1, which counts milliseconds.
        ({"maxPollingInterval": 30_000}, "maxPollingInterval", "is 08:20:00: use"),
        ({"messageEncoding": "utf-8"}, "messageEncoding", "base64 or none"),
        ({"batchsize": 16}, "options", "'batchsize' is unknown: there are maxDeq"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(
    options: Mapping[str, Any], field: str, why: str
) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        parsed(options=options)

    assert refused.value.field.endswith(field)


@pytest.mark.parametrize(
    ("text", "field", "why"),
    [
        ("", "host.json", "cannot be read as JSON in line 1"),
        ('{\n"extensions": {\n"queues" 1}}', "host.json", "in line 3"),
        ("[" * 60_000, "host.json", "cannot be read as JSON"),
        ("[" * 70_000, "host.json", "has at most 65536 characters"),
        ('{"extensions": {"queues": {}}} /* *', "host.json", "as JSON in line 1"),
        ('{"extensions": {"queues": {}}} "', "host.json", "as JSON in line 1"),
        ("[]", "host.json", "is an object"),
        ('{"version": "2.0"}', "host.json.extensions", "is no section here"),
        ('{"extensions": {"http": {}}}', "host.json.extensions.queues", "no section"),
        ('{"extensions": {"queues": []}}', "host.json.extensions.queues", "no section"),
        ('{"queues": {"batchSize": 4}}', "host.json.extensions", "milliseconds"),
        (
            '{"extensions": {"queues": {"batchSize": 64}}}',
            "host.json.extensions.queues.batchSize",
            "is 64: use 1 to 32",
        ),
        (
            '{"extensions": {"queues": {"batch": 4}}}',
            "host.json.extensions.queues",
            "'batch' is unknown",
        ),
    ],
)
def test_a_host_json_that_cannot_work_says_where(
    text: str, field: str, why: str
) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        settings_from_host_json(text)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("topic", "named", "field", "why"),
    [
        ("orders-poison", "", "dead_letter_queue", "name it expressly"),
        ("a" * 57, "", "dead_letter_queue", "at most 56 characters"),
        ("orders", "orders", "dead_letter_queue", "another queue"),
        ("orders", "orders-poison-poison", "dead_letter_queue", "of a poison queue"),
        ("orders-poison", "orders-poison-poison", "dead_letter_queue", "of a poison"),
        ("orders", "Dead", "dead_letter_queue", "'Dead' is no queue name"),
        ("or", "", "topic", "3 to 63 small letters"),
        ("Orders", "", "topic", "'Orders' is no queue name"),
        ("or--ders", "", "topic", "single hyphens"),
        ("-orders", "", "topic", "none of them first"),
        ("orders\n", "", "topic", r"'orders\\n' is no queue name"),
        ("a/../b", "", "topic", "no queue name"),
        ("bestellungen-größe", "", "topic", "no queue name"),
        ("", "", "topic", "no queue name"),
    ],
)
def test_a_name_that_cannot_work_is_refused_with_the_reason(
    topic: str, named: str, field: str, why: str
) -> None:
    settings = TopicSettings(topic=topic, dead_letter_queue=named)

    with pytest.raises(Invalid, match=why) as refused:
        AzureQueueSettings.of_topic(BrokerSettings(url=""), settings)

    assert refused.value.field == field


def test_the_longest_name_that_has_a_poison_queue() -> None:
    settings = TopicSettings(topic="a" * 56)

    parsed_settings = AzureQueueSettings.of_topic(BrokerSettings(url=""), settings)

    assert parsed_settings.poison_queue == "a" * 56 + "-poison"


def test_hidden_for_is_whole_seconds_and_at_most_a_week() -> None:
    assert parsed(visibility_timeout=0.2).hidden_for == 1
    assert parsed(visibility_timeout=90.5).hidden_for == 91
    for seconds in (0, -1, 604_801, float("nan"), float("inf")):
        with pytest.raises(Invalid, match="visibility_timeout"):
            parsed(visibility_timeout=seconds)


def test_a_broker_accepts_only_message_encoding() -> None:
    broker = BrokerSettings(url="", options={"retries": 3})

    with pytest.raises(Invalid, match="'retries' is unknown"):
        AzureQueueSettings.of_topic(broker, TopicSettings(topic="orders"))


def parsed(
    *, options: Mapping[str, object] | None = None, visibility_timeout: float = 60
) -> AzureQueueSettings:
    topic = TopicSettings(
        topic="request-queue-1",
        visibility_timeout=visibility_timeout,
        options=options or {},
    )
    return AzureQueueSettings.of_topic(BrokerSettings(url=""), topic)
