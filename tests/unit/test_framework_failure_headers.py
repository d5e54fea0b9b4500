"""Reading what frameworks write about a failure, in their documented headers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.brokers import failure_headers
from apps.brokers.adapter_contract import Header
from apps.brokers.failure_headers.story_type_and_header_values import PartialStory
from poisonguard.contract import Cause

SPRING_KAFKA: tuple[Header, ...] = (
    (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    (b"kafka_deliveryAttempt", (3).to_bytes(4, "big")),
    (b"kafka_dlt-original-topic", b"orders"),
    (b"kafka_dlt-original-partition", (2).to_bytes(4, "big")),
    (b"kafka_dlt-original-offset", (1042).to_bytes(8, "big")),
    (b"kafka_dlt-original-timestamp", (1_795_000_000_000).to_bytes(8, "big")),
    (b"kafka_dlt-original-timestamp-type", b"CREATE_TIME"),
    (b"kafka_dlt-original-consumer-group", b"billing"),
    (
        b"kafka_dlt-exception-fqcn",
        b"org.springframework.kafka.listener.ListenerExecutionFailedException",
    ),
    (b"kafka_dlt-exception-cause-fqcn", b"com.example.CardRefusedException"),
    (b"kafka_dlt-exception-message", b"Listener failed; card 4711 was refused"),
    (
        b"kafka_dlt-exception-stacktrace",
        b"org.springframework.kafka.listener.ListenerExecutionFailedException: Listener"
        b" failed\n\tat org.springframework.kafka.Listener.decorate(Listener.java:2996)"
        b"\nCaused by: com.example.CardRefusedException: card 4711 was refused\n"
        b"\tat com.example.Billing.charge(Billing.java:42)\n\t... 12 more\n",
    ),
)
SPRING_AMQP: tuple[Header, ...] = (
    (b"tenant", b"eu"),
    (
        b"x-exception-stacktrace",
        b"org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: "
        b"Listener threw exception\n\tat org.springframework.amqp.rabbit.X.y(X.java:1)"
        b"\nCaused by: java.lang.IllegalStateException: no stock: 7\n"
        b"\tat com.example.Shipping.pick(Shipping.java:9)\n",
    ),
    (b"x-exception-message", b"no stock: 7"),
    (b"x-original-exchange", b"orders"),
    (b"x-original-routingKey", b"orders.created"),
)
KAFKA_CONNECT: tuple[Header, ...] = (
    (b"__connect.errors.topic", b"orders"),
    (b"__connect.errors.partition", b"1"),
    (b"__connect.errors.offset", b"3000000000"),
    (b"__connect.errors.connector.name", b"warehouse"),
    (b"__connect.errors.task.id", b"0"),
    (b"__connect.errors.stage", b"VALUE_CONVERTER"),
    (b"__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
    (
        b"__connect.errors.exception.class.name",
        b"org.apache.kafka.connect.errors.DataException",
    ),
    (b"__connect.errors.exception.message", b"Converting byte[] failed"),
    (
        b"__connect.errors.exception.stacktrace",
        b"org.apache.kafka.connect.errors.DataException: Converting byte[] failed\n"
        b"\tat org.apache.kafka.connect.json.JsonConverter.toConnectData(J.java:324)\n",
    ),
    (b"source", b"shop"),
)
NSERVICEBUS: tuple[Header, ...] = (
    (b"NServiceBus.MessageId", b"49b3223e-4099-4345-b491-ae45015f4401"),
    (b"NServiceBus.ContentType", b"text/xml"),
    (
        b"NServiceBus.EnclosedMessageTypes",
        b"Shop.PlaceOrder, Shop, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null",
    ),
    (b"NServiceBus.MessageIntent", b"Send"),
    (b"NServiceBus.ReplyToAddress", b"Shop"),
    (b"NServiceBus.ExceptionInfo.ExceptionType", b"System.InvalidOperationException"),
    (b"NServiceBus.ExceptionInfo.HelpLink", b""),
    (b"NServiceBus.ExceptionInfo.Message", b"The order 13 is closed."),
    (b"NServiceBus.ExceptionInfo.Source", b"Shop"),
    (
        b"NServiceBus.ExceptionInfo.StackTrace",
        b"System.InvalidOperationException: The order 13 is closed.\n"
        b"   at Shop.PlaceOrderHandler.Handle(PlaceOrder message)\n",
    ),
    (b"NServiceBus.ExceptionInfo.Data.Message ID", b"49b3223e"),
    (b"NServiceBus.FailedQ", b"Shop.Orders"),
    (b"NServiceBus.ProcessingEndpoint", b"Orders"),
    (b"NServiceBus.ProcessingMachine", b"MACHINENAME"),
    (b"NServiceBus.TimeOfFailure", b"2026-11-20 11:59:30:269001 Z"),
    (b"NServiceBus.TimeSent", b"2026-11-20 11:59:29:144867 Z"),
)
MASSTRANSIT: tuple[Header, ...] = (
    (b"Content-Type", b"application/vnd.masstransit+json"),
    (b"MT-Reason", b"fault"),
    (b"MT-Fault-ExceptionType", b"System.TimeoutException"),
    (b"MT-Fault-Message", b"the bank said nothing"),
    (b"MT-Fault-StackTrace", b"   at Shop.Charge.Consume(Context c)\n"),
    (b"MT-Fault-InputAddress", b"rabbitmq://localhost/charge"),
    (b"MT-Fault-ConsumerType", b"Shop.ChargeConsumer"),
    (b"MT-Fault-MessageType", b"Shop.Charge"),
    (b"MT-Fault-RetryCount", b"3"),
    (b"MT-Fault-Timestamp", b"2026-11-20T11:59:30.1234567Z"),
    (b"MT-Redelivery-Count", b"2"),
)
REBUS: tuple[Header, ...] = (
    (b"rbs2-msg-id", b"5f0d"),
    (b"rbs2-msg-type", b"Shop.Refund, Shop"),
    (b"rbs2-content-type", b"application/json;charset=utf-8"),
    (b"rbs2-source-queue", b"refunds"),
    (b"rbs2-delivery-count", b"5"),
    (
        b"rbs2-error-details",
        b"5 unhandled exceptions: 11/20/2026 11:59:30 +00:00: "
        b"Shop.LedgerException: the ledger is closed\n   at Shop.Ledger.Book()\n",
    ),
)
CELERY: tuple[Header, ...] = (
    (b"lang", b"py"),
    (b"task", b"shop.tasks.charge"),
    (b"id", b"3b8d6b5e"),
    (b"retries", b"2"),
    (b"argsrepr", b"(13,)"),
)
RABBITMQ: tuple[Header, ...] = (
    (b"content_type", b"application/json"),
    (
        b"x-death",
        b'[{"count":1,"exchange":"","queue":"orders","reason":"delivery_limit",'
        b'"routing-keys":["orders"],"time":{"$T":1795175970}},'
        b'{"count":4,"queue":"orders","reason":"expired"}]',
    ),
    (b"x-first-death-exchange", b""),
    (b"x-first-death-queue", b"orders"),
    (b"x-first-death-reason", b"expired"),
    (b"x-delivery-count", b"4"),
)
SQS: tuple[Header, ...] = (
    (b"tenant", b"eu"),
    (b"sqs:DeadLetterQueueSourceArn", b"arn:aws:sqs:eu-central-1:123456789012:orders"),
)
OURS: tuple[Header, ...] = (
    (b"x-poison-cause", b"fatal"),
    (b"x-exception-type", b"ValueError"),
    (b"x-exception-message", b"I'm superstitious"),
)
EVERY = (
    *SPRING_KAFKA,
    *SPRING_AMQP,
    *KAFKA_CONNECT,
    *NSERVICEBUS,
    *MASSTRANSIT,
    *REBUS,
    *CELERY,
    *RABBITMQ,
    *SQS,
    *OURS,
)
HALF_PAST = datetime(2026, 11, 20, 11, 59, 30, tzinfo=UTC)


def test_spring_kafka_is_named_by_the_cause_and_not_by_its_wrapper() -> None:
    story = failure_headers.read(SPRING_KAFKA)

    assert story.told_by == ("spring-kafka",)
    assert story.exception_type == "com.example.CardRefusedException"
    assert story.exception_message == "card 4711 was refused"
    assert "Billing.java:42" in story.exception_traceback
    assert (story.cause, story.attempts) == (Cause.EXHAUSTED, 3)
    assert (story.origin, story.original_bookmark) == ("orders", "2:1042")
    assert story.consumer_group == "billing"
    assert failure_headers.leaving(SPRING_KAFKA) == SPRING_KAFKA[:1]


def test_spring_kafka_tells_what_could_not_be_read() -> None:
    kind = b"org.springframework.kafka.support.serializer.DeserializationException"

    story = failure_headers.read([(b"kafka_dlt-exception-fqcn", kind)])

    assert (story.cause, story.exception_type) == (Cause.UNDECODABLE, kind.decode())


def test_spring_kafka_retry_topics_lose_their_count() -> None:
    between: tuple[Header, ...] = (
        (b"retry_topic-attempts", (4).to_bytes(4, "big")),
        (b"retry_topic-backoff-timestamp", (1_795_000_000_000).to_bytes(8, "big")),
        (b"kafka_original-topic", b"orders"),
        (b"kafka_exception-fqcn", b"com.example.Late"),
    )

    story = failure_headers.read(between)

    assert (story.attempts, story.origin) == (4, "orders")
    assert failure_headers.leaving(between) == ()


def test_what_tells_of_a_failure_stays_behind_among_names_of_any_length() -> None:
    hostile = ((b"n" * 5_000, b"1"), (b"\xff\x00", b"2"))

    assert failure_headers.leaving((*hostile, *KAFKA_CONNECT)) == (
        *hostile,
        KAFKA_CONNECT[-1],
    )


def test_spring_amqp_is_named_by_what_its_wrapper_wraps() -> None:
    story = failure_headers.read(SPRING_AMQP)

    assert story.told_by == ("spring-amqp",)
    assert story.exception_type == "java.lang.IllegalStateException"
    assert story.exception_message == "no stock: 7"
    assert (story.cause, story.origin) == (Cause.EXHAUSTED, "orders.created")
    assert failure_headers.leaving(SPRING_AMQP) == SPRING_AMQP[:1]


def test_kafka_connect_tells_the_stage_that_failed() -> None:
    story = failure_headers.read(KAFKA_CONNECT)

    assert story.told_by == ("kafka-connect",)
    assert story.exception_type == "org.apache.kafka.connect.errors.DataException"
    assert story.exception_message == "Converting byte[] failed"
    assert story.cause is Cause.UNDECODABLE
    assert (story.origin, story.original_bookmark) == ("orders", "1:3000000000")
    assert (story.consumer_group, story.client_name) == ("warehouse", "warehouse-0")
    assert failure_headers.leaving(KAFKA_CONNECT) == KAFKA_CONNECT[-1:]


def test_nservicebus_tells_everything_in_its_own_words() -> None:
    story = failure_headers.read(NSERVICEBUS)

    assert story.told_by == ("nservicebus",)
    assert story.exception_type == "System.InvalidOperationException"
    assert story.exception_message == "The order 13 is closed."
    assert "PlaceOrderHandler" in story.exception_traceback
    assert (story.cause, story.origin) == (Cause.EXHAUSTED, "Shop.Orders")
    assert (story.consumer_group, story.client_name) == ("Orders", "MACHINENAME")
    assert story.failed_at == HALF_PAST.replace(microsecond=269001)
    assert (story.message_type, story.content_type) == ("Shop.PlaceOrder", "text/xml")


def test_an_nservicebus_message_leaves_as_what_it_is() -> None:
    leaving = failure_headers.leaving(NSERVICEBUS)

    assert leaving == (*NSERVICEBUS[:5], NSERVICEBUS[-1])


def test_masstransit_faults_and_unconsumed_messages_are_read() -> None:
    story = failure_headers.read(MASSTRANSIT)
    skipped = failure_headers.read([(b"MT-Reason", b"dead-letter")])

    assert story.told_by == skipped.told_by == ("masstransit",)
    assert story.exception_type == "System.TimeoutException"
    assert story.exception_message == "the bank said nothing"
    assert (story.cause, story.attempts) == (Cause.EXHAUSTED, 4)
    assert (story.consumer_group, story.message_type) == (
        "Shop.ChargeConsumer",
        "Shop.Charge",
    )
    assert story.failed_at == HALF_PAST.replace(microsecond=123456)
    assert skipped.cause is Cause.REJECTED
    assert failure_headers.leaving(MASSTRANSIT) == MASSTRANSIT[:1]


def test_rebus_is_named_by_the_exception_in_its_details() -> None:
    story = failure_headers.read(REBUS)

    assert story.told_by == ("rebus",)
    assert story.exception_type == "Shop.LedgerException"
    assert story.exception_message == "the ledger is closed"
    assert (story.cause, story.origin) == (Cause.EXHAUSTED, "refunds")
    assert (story.attempts, story.message_type) == (5, "Shop.Refund")
    assert failure_headers.leaving(REBUS) == REBUS[:3]


def test_celery_says_what_ran_and_starts_again_with_all_its_retries() -> None:
    story = failure_headers.read(CELERY)

    assert (story.message_type, story.attempts) == ("shop.tasks.charge", 3)
    assert story.exception_type == ""
    assert (b"retries", b"2") not in failure_headers.leaving(CELERY)
    assert len(failure_headers.leaving(CELERY)) == len(CELERY) - 1


def test_a_header_that_is_only_called_like_one_of_celerys_stays() -> None:
    headers = ((b"task", b"wash"), (b"retries", b"2"))

    assert failure_headers.read(headers).told_by == ()
    assert failure_headers.leaving(headers) == headers


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("rejected", Cause.REJECTED),
        ("expired", Cause.EXPIRED),
        ("maxlen", Cause.REJECTED),
        ("delivery_limit", Cause.MAX_DEQUEUE_COUNT),
        ("boredom", Cause.REJECTED),
    ],
)
def test_rabbitmq_tells_the_reason_of_a_death(reason: str, cause: Cause) -> None:
    deaths = f'[{{"reason":"{reason}","queue":"orders"}}]'.encode()

    stories = [
        failure_headers.read([(b"x-death", deaths)]),
        failure_headers.read([(b"x-first-death-reason", reason.encode())]),
    ]

    assert [story.cause for story in stories] == [cause, cause]
    assert {story.told_by for story in stories} == {("rabbitmq",)}


def test_rabbitmq_tells_of_the_latest_death() -> None:
    story = failure_headers.read(RABBITMQ)

    assert (story.cause, story.origin) == (Cause.MAX_DEQUEUE_COUNT, "orders")
    assert story.failed_at == datetime.fromtimestamp(1795175970, UTC)
    assert story.attempts is None  # the count is that of the queue it lies in now
    assert failure_headers.leaving(RABBITMQ) == RABBITMQ[:1]


def test_numbers_and_properties_of_amqp_are_read_as_our_adapter_keeps_them() -> None:
    retries = dict(CELERY) | {b"retries": b'{"$I": 2}'}
    amqp = ((b"amqp.content_type", b"application/json"), (b"amqp.type", b"order"))

    story = failure_headers.read([*amqp, *retries.items()])
    plain = failure_headers.read(amqp)

    assert story.attempts == 3
    assert (plain.content_type, plain.message_type) == ("application/json", "order")
    assert plain.told_by == ()


def test_sqs_tells_where_its_policy_moved_a_message_from() -> None:
    story = failure_headers.read(SQS)

    assert story.told_by == ("amazon-sqs",)
    assert (story.cause, story.origin) == (Cause.MAX_DEQUEUE_COUNT, "orders")
    assert failure_headers.leaving(SQS) == SQS[:1]


def test_ours_is_believed_first_and_the_broker_last() -> None:
    story = failure_headers.read((*RABBITMQ, *NSERVICEBUS, *OURS))

    assert story.told_by == ("poisonweb", "nservicebus", "rabbitmq")
    assert (story.exception_type, story.cause) == ("ValueError", Cause.FATAL)
    assert story.exception_message == "I'm superstitious"
    assert "PlaceOrderHandler" in story.exception_traceback
    assert story.origin == "Shop.Orders"


def test_what_the_broker_says_is_no_match_for_who_knows_why() -> None:
    rejected = ((b"x-death", b'[{"reason":"rejected","queue":"q"}]'),)

    assert failure_headers.read((*rejected, *SPRING_AMQP)).cause is Cause.EXHAUSTED


def test_a_message_without_a_reason_names_no_framework() -> None:
    plain: tuple[Header, ...] = (
        (b"content-type", b"text/plain"),
        (b"x-poisonweb-redrive", b"id.signature"),
        (b"NServiceBus.EnclosedMessageTypes", b"Shop.PlaceOrder, Shop"),
        (b"rbs2-msg-type", b"Shop.Refund"),
    )

    story = failure_headers.read(plain)

    assert (story.told_by, story.cause) == ((), Cause.REJECTED)
    assert (story.message_type, story.redrive) == ("Shop.PlaceOrder", "id.signature")


@pytest.mark.parametrize(
    "moment",
    [
        b"2026-11-20 11:59:30:269001",
        b"2026-13-41 11:59:30:269001 Z",
        b"0000-01-01 00:00:00:000000 Z",
        b"99999-01-01 00:00:00:000000 Z",
        b"2026-11-20T11:59:30Z",
        "٢٠٢٦-11-20 11:59:30:269001 Z".encode(),
        b"",
    ],
)
def test_a_moment_in_another_format_is_none_of_nservicebus(moment: bytes) -> None:
    headers = [(b"NServiceBus.FailedQ", b"q"), (b"NServiceBus.TimeOfFailure", moment)]

    assert failure_headers.read(headers).failed_at is None


HOSTILE = [
    b"",
    b"\0",
    b"\xff\xfe\0",
    b"9" * 5_000,
    b"-1",
    b"\xff" * 4,
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"[" * 100_000,
    b"[]",
    b"[7]",
    b'{"reason":7}',
    b'[{"time":{"$T":' + b"9" * 30 + b"}}]",
    b'[{"time":true,"reason":["x"],"queue":{}}]',
    b'[{"time":' + b"9" * 5_000 + b"}]",
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_no_value_does_any_harm(value: bytes) -> None:
    headers = [(name, value) for name, _ in EVERY]

    story = failure_headers.read(headers)

    types = get_type_hints(PartialStory)
    assert types
    assert [n for n in types if not isinstance(getattr(story, n), types[n])] == []
    assert story.attempts is None or 0 <= story.attempts < 2**31
    failure_headers.leaving(headers)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name, _ in EVERY]) | st.binary(max_size=5),
            st.sampled_from([value for _, value in EVERY]) | st.binary(max_size=40),
        ),
        max_size=20,
    )
)
def test_reading_never_fails_and_leaving_alters_nothing(headers: list[Header]) -> None:
    story = failure_headers.read(headers)
    leaving = failure_headers.leaving(headers)

    assert isinstance(story.cause, Cause)
    assert [header for header in headers if header in leaving] == list(leaving)
    assert failure_headers.read(leaving).exception_type == ""


@pytest.mark.parametrize("piece", [b"a.", b"a", b"a.Exception ", b"Caused by: a.b\n"])
def test_ten_megabytes_take_no_more_than_a_moment(piece: bytes) -> None:
    large = piece * (10_000_000 // len(piece))
    parsed = ("x-death", "x-exception-stacktrace", "rbs2-error-details")
    headers = [(b"kafka_dlt-exception-fqcn", b"a.b"), (b"NServiceBus.FailedQ", b"q")]
    headers += [(name.encode(), large) for name in parsed]
    headers += [(b"kafka_dlt-exception-stacktrace", large)]
    headers += [(b"NServiceBus.TimeOfFailure", large), (b"x-attempts", large)]
    begun = time.process_time()

    failure_headers.read(headers)

    assert time.process_time() - begun < 3
