"""Messages of a topic become deliveries once, or poisons that say why not."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from apps.brokers.adapter_contract import Header
from apps.brokers.models import Topic
from apps.brokers.topic_policies import Policies, set_policies
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.models import Delivery as CapturedDelivery
from apps.capture.models import HeldDeadLetter, Lane
from apps.core.actor import Actor
from apps.core.errors import Forbidden, Invalid
from apps.poison.models import Body, Failure, Poison
from apps.poison.query_language import Query
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.services.endpoints import change_endpoint, remove_endpoint
from apps.redelivery.topic_requests.topics_that_call_endpoints import topics_that_call
from apps.team.rights import Principal, Scope
from tests.in_memory_queue_broker import Queues, adapted
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    ADMIN,
    BROKEN,
    SUCCESS,
    claim,
    end,
    endpoint,
)
from tests.lane_crash_simulation import (
    Killed,
    drain_all,
    draining,
    dying,
    request_topic_on_queues,
)
from tests.triage_operation_runner import confirm, preview, run

pytestmark = pytest.mark.django_db(transaction=True)

ODD = bytes(range(256))


def by_headers(name: str = "stock-quote", **values: bytes) -> tuple[Header, ...]:
    fields = {"endpoint": name.encode(), **values}
    return tuple(
        (f"x-poisonweb-{field.replace('_', '-')}".encode(), value)
        for field, value in fields.items()
    )


def by_json(name: str = "stock-quote", **members: Any) -> bytes:
    return json.dumps({"version": 1, "endpoint": name, **members}).encode()


@pytest.fixture
def queues() -> Iterator[Queues]:
    queues = Queues()
    with adapted(queues):
        yield queues


@pytest.fixture
def quotes() -> Endpoint:
    return endpoint()


@pytest.fixture
def requests(queues: Queues, now: datetime) -> Topic:
    return request_topic_on_queues(now, "stock-*")


def stored(delivery: Delivery) -> tuple[str, bytes, list[bytes], bytes]:
    return (
        delivery.method,
        bytes(delivery.path),
        [bytes(part) for part in delivery.headers],
        bytes(delivery.body.content),
    )


def refusals() -> list[tuple[str, str]]:
    """Return cause and reason of each poison, in the order of their messages."""
    rows = Poison.objects.order_by("pk").values_list("cause", "error_message")
    return [(str(cause), str(reason)) for cause, reason in rows]


def test_each_form_becomes_the_request_that_it_says(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    headers = (
        *by_headers(path=b"/a%2Fb?x=%20", method=b"PUT"),
        (b"x-poisonweb-http-X-Odd", b"\xff"),
        (b"traceparent", b"00-1"),
    )
    queues.put("requests", ODD, headers)
    document = by_json(
        path="/a%2Fb?x=%20",
        method="PUT",
        headers=[["X-Odd", "\xff"]],
        body=base64.b64encode(ODD).decode(),
    )
    queues.put("requests", document)

    drain_all(requests, now)

    both = Delivery.objects.order_by("pk")
    hops = [b"x-poisonweb-hops", b"1"]
    said = ("PUT", b"/a%2Fb?x=%20", [b"X-Odd", b"\xff", *hops], ODD)
    assert [stored(each) for each in both] == [said, said]
    assert {each.caller for each in both} == {"topic:requests"}
    assert {each.state for each in both} == {"waiting"}
    assert queues.contents("requests") == []
    assert Lane.objects.get().captured == 2
    # Each of them is its own message, and so has a key of its own.
    keys = {each.idempotency_key for each in both}
    assert len(keys) == 2
    assert {each.dedupe for each in both} == {f"topic-{key}" for key in keys}
    assert not Poison.objects.exists()


def test_a_delivery_from_a_topic_goes_by_the_plan_of_its_endpoint(
    queues: Queues, requests: Topic, now: datetime
) -> None:
    quotes = endpoint(
        expiry=3_600.0,
        retries=1,
        order_header="Account",
        response_hook=endpoint("hook").name,
    )
    for body in (b"1", b"2"):
        headers = by_headers(idempotency_key=b"order-" + body)
        account = (b"x-poisonweb-http-Account", b"anna")
        queues.put("requests", body, (*headers, account))

    drain_all(requests, now)

    first, second = Delivery.objects.order_by("pk")
    assert first.expires_at == now + timedelta(hours=1)
    assert (first.idempotency_key, first.is_repeatable) == ("order-1", True)
    assert first.order_key == second.order_key == b"anna"
    at = (now - quotes.created_at).total_seconds() + 1
    (claimed,) = claim(quotes, at=at)
    assert (claimed.id, claimed.body) == (first.pk, b"1")
    assert end(quotes, claimed, SUCCESS, at=at)
    (after,) = Delivery.objects.filter(endpoint__name="hook")
    assert bytes(after.body.content) == b"fine"
    (claimed,) = claim(quotes, at=at)
    assert claimed.id == second.pk
    assert end(quotes, claimed, BROKEN, at=at)
    second.refresh_from_db()
    assert (second.state, second.retry_count) == ("waiting", 1)


@pytest.mark.parametrize(
    ("body", "headers", "cause", "reason"),
    [
        (b"\xff no JSON", (), "undecodable", "no JSON"),
        (by_json(url="http://evil.example/"), (), "undecodable", "never a URL"),
        (by_json(path="http://evil.example/"), (), "undecodable", "never a URL"),
        (by_json(path="//evil.example/"), (), "rejected", "more than one slash"),
        (by_json(path="/a/%2e%2E/b"), (), "rejected", "remove . and .."),
        (by_json(path="/a/..;x=1/b"), (), "rejected", "remove . and .."),
        (by_json(path="/a\r\nHost: evil"), (), "rejected", "percent-encode"),
        (by_json(path="/%0d%0aHost:"), (), "rejected", "control characters"),
        (by_json(path="/a?b=1#c"), (), "rejected", "percent-encode"),
        (by_json(path="/" + "a" * 9_000), (), "rejected", "longer than"),
        (by_json("http://evil.example"), (), "rejected", "never a URL"),
        (by_json("stock-quote/../other"), (), "rejected", "never a URL"),
        (by_json("stock-\0"), (), "rejected", "never a URL"),
        (by_json("x" * 101), (), "rejected", "never a URL"),
        (by_json("other"), (), "rejected", "may not call the endpoint other"),
        (by_json("stock-none"), (), "rejected", "There is no endpoint stock-none"),
        (by_json(method="GE T"), (), "rejected", "no valid HTTP"),
        (by_json(method="CONNECT"), (), "rejected", "CONNECT"),
        (by_json(headers=[["A", "1\r\nB: 2"]]), (), "rejected", "control character"),
        (by_json(headers=[["A:", "1"]]), (), "rejected", "not the name of a header"),
        (by_json(headers=[["A", "1"]] * 201), (), "rejected", "201 headers"),
        (by_json(headers=[["A", "1" * 100_001]]), (), "rejected", "at most 200"),
        (
            by_json(headers=[["Idempotency-Key", "1"]], idempotency_key="2"),
            (),
            "rejected",
            "one Idempotency-Key",
        ),
        (
            by_json(headers=[["x-poisonweb-hops", "5"]]),
            (),
            "rejected",
            "gateways",
        ),
        (
            b"",
            (*by_headers(), (b"x-poisonweb-http-A", b"1\r\nB: 2")),
            "rejected",
            "control character",
        ),
        (b"", by_headers(path=b"http://evil.example"), "undecodable", "never a URL"),
        (b"", by_headers(path=b"/\xc0\xae\xc0\xae/"), "rejected", "percent-encode"),
        (b"", by_headers("other"), "rejected", "may not call"),
        (
            b'<!DOCTYPE a><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/'
            b'envelope/"/>',
            (
                *by_headers(),
                (b"x-poisonweb-http-Content-Type", b"application/soap+xml"),
            ),
            "rejected",
            "doctype",
        ),
    ],
)
def test_what_is_no_request_is_kept_as_it_came_and_the_rest_goes_on(
    queues: Queues,
    requests: Topic,
    quotes: Endpoint,
    now: datetime,
    body: bytes,
    headers: tuple[Header, ...],
    cause: str,
    reason: str,
) -> None:
    queues.put("requests", b"before", by_headers())
    queues.put("requests", body, headers)
    queues.put("requests", b"after", by_headers())

    drain_all(requests, now)

    bodies = [bytes(each.body.content) for each in Delivery.objects.order_by("pk")]
    assert bodies == [b"before", b"after"]
    ((said_cause, said_reason),) = refusals()
    assert (said_cause, reason in said_reason) == (cause, True), said_reason
    poison = Poison.objects.get()
    assert (poison.topic, poison.error_type) == (requests, "RequestRefused")
    content = Body.objects.get()
    assert bytes(content.content) == body
    parts = [bytes(part) for part in content.headers]
    assert parts == [part for header in headers for part in header]
    assert queues.contents("requests") == []


def test_what_a_producer_says_of_a_failure_is_no_reason(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    story = (
        (b"x-poison-cause", b"fatal"),
        (b"x-original-bookmark", b"1-0"),
        (b"x-consumer-group", b"theirs"),
    )
    queues.put("requests", b"no JSON 1", story)
    queues.put("requests", b"no JSON 2", story)
    queues.put("requests", b"fine", (*by_headers(), *story))

    drain_all(requests, now)

    assert [cause for cause, _ in refusals()] == ["undecodable"] * 2
    contents = {bytes(each.content) for each in Body.objects.all()}
    assert contents == {b"no JSON 1", b"no JSON 2"}
    assert set(Poison.objects.values_list("consumer_group", flat=True)) == {""}
    assert Delivery.objects.count() == 1


def test_a_body_has_the_limit_of_the_gateway(
    queues: Queues,
    requests: Topic,
    quotes: Endpoint,
    now: datetime,
    settings: Settings,
) -> None:
    settings.POISONWEB_REQUEST_LIMIT = 1_000
    for size in (1_000, 1_001, 3_000):
        queues.put("requests", b"a" * size, by_headers())
        body = base64.b64encode(b"b" * size).decode()
        queues.put("requests", by_json(body=body))

    drain_all(requests, now)

    sizes = Delivery.objects.order_by("pk").values_list("size", flat=True)
    assert list(sizes) == [1_000, 1_000]
    reasons = refusals()
    assert len(reasons) == 4
    assert {cause for cause, _ in reasons} == {"rejected"}
    assert all("at most 1000 bytes" in reason for _, reason in reasons)


def test_what_cannot_even_be_kept_stays_in_its_queue(
    queues: Queues,
    requests: Topic,
    quotes: Endpoint,
    now: datetime,
    settings: Settings,
) -> None:
    settings.POISONWEB_BODY_LIMIT = 100
    queues.put("requests", b"a" * 101, by_headers())
    queues.put("requests", b"fine", by_headers())

    drain_all(requests, now)

    assert Delivery.objects.count() == 1
    assert "too large" in HeldDeadLetter.objects.get().reason
    assert len(queues.contents("requests")) == 1


@pytest.mark.parametrize("names", [True, False])
def test_a_request_is_stored_once_at_whatever_step_its_lane_dies(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime, names: bool
) -> None:
    queues.names = names
    expected = Counter[bytes]()
    refused = 0
    for at in range(1, 15):
        for number in range(6):
            body = b"%d/%d" % (at, number)
            if number == 3:
                queues.put("requests", b"no JSON " + body)
                refused += 1
            else:
                queues.put("requests", body, by_headers())
                expected[body] += 1
        with dying(at), suppress(Killed):
            drain_all(requests, now, at_once=4)
        queues.cut()
        drain_all(requests, now, at_once=4)

    bodies = [bytes(each.body.content) for each in Delivery.objects.all()]
    assert Counter(bodies) == expected
    assert (Poison.objects.count(), Failure.objects.count()) == (refused, refused)
    assert queues.contents("requests") == []
    # Nothing is left that could be mistaken for a later message, but for what a lane
    # left that died after the acknowledgement.
    assert CapturedDelivery.objects.count() <= (0 if names else 12)


def test_a_message_that_its_broker_brings_again_is_the_same_request(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    queues.put("requests", b"once", by_headers())
    (message,) = queues.queues["requests"]
    drain_all(requests, now)
    (delivery,) = Delivery.objects.all()
    delivery_end(quotes, delivery, now)

    # An acknowledgement that the broker lost, long ago.
    queues.queues["requests"].append(message)
    drain_all(requests, now)

    assert Delivery.objects.count() == 1
    assert queues.contents("requests") == []


def delivery_end(quotes: Endpoint, delivery: Delivery, now: datetime) -> None:
    at = (now - quotes.created_at).total_seconds() + 1
    (claimed,) = claim(quotes, at=at)
    assert claimed.id == delivery.pk
    assert end(quotes, claimed, SUCCESS, at=at)


def test_the_id_of_a_producer_names_a_message_only_with_its_content(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    queues.names = False
    message_id = (b"amqp.message_id", b"13")
    for body in (b"a", b"a", b"b"):
        queues.put("requests", body, (message_id, *by_headers()))
    # Without an id, equal messages are two requests.
    for body in (b"c", b"c"):
        queues.put("requests", body, by_headers())

    drain_all(requests, now)

    bodies = [bytes(each.body.content) for each in Delivery.objects.order_by("pk")]
    assert bodies == [b"a", b"b", b"c", b"c"]


def test_equal_places_of_two_topics_are_two_requests(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    other = Topic.objects.create(
        name="others",
        native_name="others",
        broker=requests.broker,
        dead_letter_queue="others",
        request_endpoints=["*"],
    )
    Lane.objects.create(topic=other, mode="capture")
    for queue in ("requests", "others"):
        queues.put(queue, b"x", by_headers())
        queues.queues[queue][0].number = 13

    drain_all(requests, now)
    drain_all(other, now)

    callers = Delivery.objects.order_by("pk").values_list("caller", flat=True)
    assert list(callers) == ["topic:requests", "topic:others"]
    assert len({each.idempotency_key for each in Delivery.objects.all()}) == 2


def test_a_disabled_endpoint_keeps_its_requests_for_later(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    change_endpoint(
        name=quotes.name, changes={"is_enabled": False}, principal=ADMIN, now=now
    )
    queues.put("requests", b"later", by_headers())

    drain_all(requests, now)

    assert Delivery.objects.get().state == "waiting"
    assert not Poison.objects.exists()


def test_a_request_for_a_removed_endpoint_can_be_requeued_when_it_is_back(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    remove_endpoint(name=quotes.name, principal=ADMIN, now=now)
    queues.put("requests", ODD, by_headers(path=b"/x"))
    drain_all(requests, now)
    assert refusals() == [("rejected", "There is no endpoint stock-quote.")]
    # A requeue before the endpoint is there is refused again, as the same message.
    run(confirm(ADMIN, preview(ADMIN, now, query=Query.parse("is:open")), now), now)
    drain_all(requests, now)
    poison = Poison.objects.get()
    assert (poison.state, poison.recurrences) == ("open", 1)

    endpoint()
    run(confirm(ADMIN, preview(ADMIN, now, query=Query.parse("is:open")), now), now)
    drain_all(requests, now)

    (delivery,) = Delivery.objects.all()
    hops = [b"x-poisonweb-hops", b"1"]
    assert stored(delivery) == ("POST", b"/x", hops, ODD)
    poison.refresh_from_db()
    assert poison.state == "confirmed"


def test_an_observing_or_paused_lane_takes_no_request(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    queues.put("requests", b"x", by_headers())
    lane_mode_and_pause.pause(topic=requests, principal=ADMIN, now=now)

    assert Lane.objects.get().paused
    with draining(requests, now) as work:
        work.monitor_lane()
    assert Lane.objects.get().detail == "1 in the queue"
    assert not Delivery.objects.exists()


def test_the_messages_of_other_topics_are_dead_letters_as_before(
    queues: Queues, requests: Topic, quotes: Endpoint, now: datetime
) -> None:
    Topic.objects.filter(pk=requests.pk).update(request_endpoints=[])
    requests.refresh_from_db()
    queues.put("requests", b"x", by_headers())

    drain_all(requests, now)

    assert not Delivery.objects.exists()
    assert Poison.objects.get().cause == "rejected"


# --- the policy


@pytest.fixture
def orders(queues: Queues, now: datetime) -> Topic:
    topic = request_topic_on_queues(now)
    Topic.objects.filter(pk=topic.pk).update(dead_letter_queue="requests-dead")
    return Topic.objects.select_related("broker").get(pk=topic.pk)


def set_requests(
    topic: Topic, principal: Principal, now: datetime, **data: Any
) -> Topic:
    policies = Policies.of(topic).changed(data)
    return set_policies(topic=topic, policies=policies, principal=principal, now=now)


def test_a_topic_of_requests_reads_itself(orders: Topic, now: datetime) -> None:
    with pytest.raises(Invalid) as wrong:
        set_requests(orders, ADMIN, now, request_endpoints=["stock-*"])
    assert wrong.value.field == "dead_letter_queue"

    topic = set_requests(
        orders,
        ADMIN,
        now,
        request_endpoints="stock-*, other\n stock-*",
        dead_letter_queue="requests",
    )

    assert topic.request_endpoints == ["stock-*", "other"]
    assert topic.takes_requests
    # Only together can it become an ordinary topic again, elsewhere.
    with pytest.raises(Invalid) as wrong:
        set_requests(topic, ADMIN, now, dead_letter_queue="requests-dead")
    assert wrong.value.field == "dead_letter_queue"
    set_requests(topic, ADMIN, now, request_endpoints=[], dead_letter_queue="x")


@pytest.mark.parametrize(
    "patterns",
    [
        ["Stock"],
        ["a/b"],
        ["http://evil.example"],
        ["a b"],
        ["a" * 101],
        ["a\0"],
        [1],
        [["a"]],
        7,
        {"a": 1},
        None,
        [f"e{number}" for number in range(51)],
    ],
)
def test_patterns_of_endpoints_are_those_of_names(patterns: object) -> None:
    with pytest.raises(Invalid) as wrong:
        Policies().changed({"request_endpoints": patterns})
    assert wrong.value.field == "request_endpoints"


@pytest.mark.parametrize(
    ("own", "patterns", "is_allowed"),
    [
        (("requests", "gateway/stock-*"), ["stock-*"], True),
        (("requests", "gateway/stock-*"), ["stock-quote", "stock-*-x"], True),
        (("requests", "gateway/stock-*"), ["*"], False),
        (("requests", "gateway/stock-*"), ["stock*"], False),
        (("requests", "gateway/stock-*"), ["stock-quote", "other"], False),
        (("requests", "gateway/s*-quote"), ["s*-quote"], True),
        (("requests", "gateway/s*-quote"), ["s*"], False),
        (("requests",), ["stock-quote"], False),
        (("*",), ["*"], True),
    ],
)
def test_who_sees_some_endpoints_lets_a_topic_call_only_these(
    orders: Topic,
    now: datetime,
    own: tuple[str, ...],
    patterns: list[str],
    is_allowed: bool,
) -> None:
    who = Principal(actor=Actor.key("ci"), scopes=frozenset(Scope), topics=own)

    with suppress(Forbidden):
        set_requests(
            orders, who, now, request_endpoints=patterns, dead_letter_queue="requests"
        )

    topic = Topic.objects.get(pk=orders.pk)
    assert topic.request_endpoints == (patterns if is_allowed else [])


def test_an_endpoint_knows_the_topics_that_feed_it(
    requests: Topic, quotes: Endpoint
) -> None:
    other = endpoint("other")
    few = Principal(
        actor=Actor.key("ci"), scopes=frozenset(Scope), topics=("gateway/*",)
    )

    assert topics_that_call([quotes, other], ADMIN) == {
        quotes.pk: [requests],
        other.pk: [],
    }
    assert topics_that_call([quotes], few) == {quotes.pk: []}
