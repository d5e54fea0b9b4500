from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from apps.brokers.adapter_contract import Outbound, OutcomeKind
from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.sqs.adapter import ADAPTER
from apps.brokers.adapters.sqs.publisher import SqsPublisher
from apps.brokers.adapters.sqs.reader import SqsDeadLetterReader
from apps.brokers.adapters.sqs.sqs_calls import SqsAddress, SqsRejected, SqsWire
from apps.brokers.errors import MaybeSent, NotSent
from apps.core.errors import Invalid, Unavailable

URL = "sqs://AKIA:se%2Fcret%2B@eu-central-1"
ADDRESS = SqsAddress.of(URL, {})
SENT, REFUSED, UNKNOWN = OutcomeKind.SENT, OutcomeKind.REFUSED, OutcomeKind.UNKNOWN
UNSENT = OutcomeKind.UNSENT


class ScriptedClient:
    """Stand-in for boto3's client, which plays answers and records the calls.

    moto never throttles, fails in part or forgets its own credentials.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, action: str) -> Any:
        def call(**parameters: Any) -> Any:
            if action == "get_queue_url":
                return {"QueueUrl": f"https://sqs/{parameters['QueueName']}"}
            self.heard.append((action, parameters))
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def error(code: str, status: int = 400, message: str = "words") -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "SendMessageBatch",
    )


def publisher(*answers: Any) -> tuple[SqsPublisher, ScriptedClient]:
    sqs_publisher, script = SqsPublisher(ADDRESS), ScriptedClient(*answers)
    sqs_publisher._wire._client = script
    return sqs_publisher, script


def reader(*answers: Any) -> tuple[SqsDeadLetterReader, ScriptedClient]:
    settings = TopicSettings(topic="orders", dead_letter_queue="orders-dlq")
    sqs_reader, script = (
        SqsDeadLetterReader(ADDRESS, settings),
        ScriptedClient({}, *answers),
    )
    sqs_reader._wire._client = script
    return sqs_reader, script


def outbound(number: int, topic: str = "orders") -> Outbound:
    return Outbound(topic=topic, body=b"%d" % number, headers=(), dedupe=f"d{number}")


def ok(*ids: int) -> dict[str, Any]:
    done = [{"Id": str(n), "MessageId": f"m{n}"} for n in ids]
    return {"Successful": done, "Failed": []}


def failed(number: int, code: str, *, sender: bool) -> dict[str, Any]:
    return {"Id": str(number), "Code": code, "SenderFault": sender, "Message": "words"}


def test_an_address_gives_region_and_keys() -> None:
    assert (ADDRESS.region, ADDRESS.access_key, ADDRESS.secret_key) == (
        "eu-central-1",
        "AKIA",
        "se/cret+",
    )
    assert SqsAddress.of("sqs://us-east-1", {}).access_key is None
    assert "cret" not in repr(ADDRESS) + str(ADDRESS)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://eu-central-1",
        "sqs://",
        "sqs://key@eu-central-1",
        "sqs://:secret@eu-central-1",
        "sqs://key:se/cret@eu-central-1",
        "sqs://key:secret@eu-central-1/queue",
        "sqs://key:secret@eu-central-1:9324",
        "sqs://key:secret@host.example.com",
        "sqs://key:secret@eu-central-1?x=1",
        "sqs://[::1",
    ],
)
def test_an_unusable_address_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(Invalid) as refusal:
        ADAPTER.publisher(BrokerSettings(url=url))

    assert refusal.value.field == "url"
    assert "cret" not in str(refusal.value).replace("secret-key", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"region": "x"}, "is unknown"),
        ({"endpoint_url": 7}, "must be"),
        ({"endpoint_url": "ftp://x"}, "must be"),
        ({"endpoint_url": "http://"}, "must be"),
        ({"endpoint_url": "http://a b"}, "must be"),
        ({"endpoint_url": "http://a:b@x"}, "without a secret"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        ADAPTER.broker_admin(BrokerSettings(url=URL, options=options))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (TopicSettings(topic="a", dead_letter_queue="a"), "dead_letter_queue"),
        (TopicSettings(topic="a", visibility_timeout=0), "visibility_timeout"),
        (TopicSettings(topic="a", visibility_timeout=43_201), "visibility_timeout"),
        (TopicSettings(topic="a", options={"x": 1}), "options"),
    ],
)
def test_unusable_topics_are_refused(settings: TopicSettings, field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        ADAPTER.dead_letter_reader(BrokerSettings(url=URL), settings)

    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (error("RequestThrottled"), NotSent),
        (error("AWS.SimpleQueueService.OverLimit", 403), NotSent),
        (error("InvalidClientTokenId", 403), NotSent),
        (error("ExpiredToken", 403), NotSent),
        (error("InternalError", 500), MaybeSent),
        (error("ServiceUnavailable", 503), MaybeSent),
        (error("AccessDenied", 403), SqsRejected),
        (error("InvalidMessageContents"), SqsRejected),
        (EndpointConnectionError(endpoint_url="x"), NotSent),
        (NoCredentialsError(), NotSent),
        (ReadTimeoutError(endpoint_url="x"), MaybeSent),
        (ConnectionClosedError(endpoint_url="x"), MaybeSent),
        (BotoCoreError(), MaybeSent),
        (ConnectionResetError("reset"), MaybeSent),
    ],
)
def test_each_failure_is_translated_into_its_error(
    failure: Exception, expected: type[Exception]
) -> None:
    wire = SqsWire(ADDRESS)
    wire._client = ScriptedClient(failure)

    with pytest.raises(Exception) as raised:  # noqa: PT011, its very type is asserted
        wire.call("send_message_batch", about="orders")

    assert type(raised.value) is expected


def test_each_message_of_a_partly_failed_call_has_its_outcome() -> None:
    answer = ok(0, 4)
    answer["Failed"] = [
        failed(1, "InvalidMessageContents", sender=True),
        failed(2, "InternalError", sender=False),
        failed(3, "AWS.SimpleQueueService.RequestThrottled", sender=True),
    ]
    sqs, _ = publisher(answer)

    outcomes = sqs.publish([outbound(n) for n in range(6)])

    kinds = [one.kind for one in outcomes]
    assert kinds == [SENT, REFUSED, UNKNOWN, UNSENT, SENT, UNKNOWN]
    assert outcomes[1].detail == "InvalidMessageContents: words"
    assert (outcomes[0].bookmark, outcomes[4].bookmark) == ("m0", "m4")


def test_publish_raises_unavailable_when_nothing_was_sent() -> None:
    for answer in (error("RequestThrottled"), error("ExpiredToken", 403)):
        sqs, _ = publisher(answer)

        with pytest.raises(Unavailable):
            sqs.publish([outbound(0)])


def test_only_the_call_whose_answer_was_lost_is_unknown_and_the_rest_is_unsent() -> (
    None
):
    turned_away, lost = error("RequestThrottled"), ReadTimeoutError(endpoint_url="x")
    for trouble, unknown in ((turned_away, 0), (lost, 10)):
        sqs, script = publisher(ok(*range(10)), trouble)

        outcomes = sqs.publish([outbound(n) for n in range(35)])

        kinds = [one.kind for one in outcomes]
        rest = [UNKNOWN] * unknown + [UNSENT] * (25 - unknown)
        assert kinds == [SENT] * 10 + rest
        # One lost answer is enough: the other calls are not made.
        assert len(script.heard) == 2


def test_publish_does_not_raise_when_an_answer_may_be_lost() -> None:
    sqs, _ = publisher(error("InternalError", 500))

    assert [one.kind for one in sqs.publish([outbound(0)])] == [UNKNOWN]


def test_a_refused_call_is_split_to_the_last_message_and_sends_none_twice() -> None:
    refusal = error("InvalidMessageContents")
    sqs, script = publisher(refusal, ok(0, 1), refusal, refusal, ok(0))

    outcomes = sqs.publish([outbound(n) for n in range(4)])

    assert [one.kind for one in outcomes] == [SENT, SENT, REFUSED, SENT]
    sizes = [len(parameters["Entries"]) for _, parameters in script.heard]
    assert sizes == [4, 2, 2, 1, 1]


def test_a_refusal_of_the_whole_queue_is_not_split() -> None:
    sqs, script = publisher(error("KmsDisabled"))

    outcomes = sqs.publish([outbound(n) for n in range(4)])

    assert [one.kind for one in outcomes] == [REFUSED] * 4
    assert len(script.heard) == 1
    assert "KmsDisabled" in outcomes[0].detail


def test_in_a_fifo_queue_nothing_overtakes_what_may_have_to_be_sent_again() -> None:
    answer = ok(*range(9))
    answer["Failed"] = [failed(9, "InternalError", sender=False)]
    sqs, script = publisher(answer, ok(0))
    window = [outbound(n, "orders.fifo") for n in range(15)]

    outcomes = sqs.publish([*window, outbound(0, "mail.fifo")])

    kinds = [one.kind for one in outcomes]
    assert kinds == [SENT] * 9 + [UNKNOWN] + [UNSENT] * 5 + [SENT]
    assert [p["QueueUrl"] for _, p in script.heard] == [
        "https://sqs/orders.fifo",
        "https://sqs/mail.fifo",
    ]


def test_in_a_fifo_queue_nothing_overtakes_when_the_call_was_split() -> None:
    half = ok(0) | {"Failed": [failed(1, "InternalError", sender=False)]}
    sqs, script = publisher(error("InvalidMessageContents"), half)

    outcomes = sqs.publish([outbound(n, "orders.fifo") for n in range(4)])

    assert [one.kind for one in outcomes] == [SENT, UNKNOWN, UNSENT, UNSENT]
    assert len(script.heard) == 2


def received(number: int, receipt: str = "r") -> dict[str, Any]:
    return {
        "MessageId": f"m{number}",
        "ReceiptHandle": f"{receipt}{number}",
        "Body": "x",
        "Attributes": {"ApproximateReceiveCount": "1"},
    }


def test_a_failed_removal_raises_after_the_others_are_done() -> None:
    sqs, script = reader(
        {"Messages": [received(0), received(1), received(2)]},
        {},
        {
            "Successful": [{"Id": "0"}],
            "Failed": [
                failed(1, "InternalError", sender=False),
                failed(2, "ReceiptHandleIsInvalid", sender=True),
            ],
        },
        {"Successful": [{"Id": "0"}], "Failed": []},
    )
    letters = sqs.read(limit=9, wait=0)

    with pytest.raises(Unavailable, match="InternalError"):
        sqs.acknowledge([letter.handle for letter in letters])
    sqs.acknowledge([letter.handle for letter in letters])

    again = script.heard[-1][1]["Entries"]
    assert [one["ReceiptHandle"] for one in again] == ["r1"]


def test_a_message_with_an_invalid_receipt_is_returned_again() -> None:
    void = {"Failed": [failed(0, "ReceiptHandleIsInvalid", sender=True)]}
    sqs, _ = reader(
        {"Messages": [received(0)]}, {}, void, {"Messages": [received(0, "new")]}, {}
    )
    sqs.acknowledge([one.handle for one in sqs.read(limit=9, wait=0)])

    assert [one.bookmark for one in sqs.read(limit=9, wait=0)] == ["m0"]


def test_a_message_received_again_is_removed_by_its_newest_receipt() -> None:
    sqs, script = reader(
        {"Messages": [received(0)]},
        {},
        {"Messages": [received(0, "new")]},
        {},
        {"Successful": [{"Id": "0"}], "Failed": []},
    )
    sqs.read(limit=9, wait=0)

    assert sqs.read(limit=9, wait=0) == []
    sqs.acknowledge(["m0"])

    assert script.heard[-1][1]["Entries"][0]["ReceiptHandle"] == "new0"


def test_after_an_outage_everything_is_handed_out_again() -> None:
    sqs, _ = reader(
        {"Messages": [received(0)]},
        {},
        ReadTimeoutError(endpoint_url="x"),
        {"Messages": [received(0)]},
        {},
    )
    before = sqs.read(limit=9, wait=0)
    with pytest.raises(Unavailable):
        sqs.read(limit=9, wait=0)

    assert sqs.read(limit=9, wait=0) == before


def test_a_read_waits_at_sqs_for_at_most_twenty_seconds() -> None:
    sqs, script = reader({}, {}, {})

    for wait in (0.9, 1.0, 90.0):
        sqs.read(limit=1, wait=wait)

    waits = [p["WaitTimeSeconds"] for a, p in script.heard if a == "receive_message"]
    assert waits == [0, 1, 20]
