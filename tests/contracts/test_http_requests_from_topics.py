"""Requests for endpoints on the real brokers: in both forms, and once each."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from apps.brokers.adapter_contract import Header, Headers
from apps.brokers.models import Broker, Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.brokers.topic_policies import Policies, set_policies
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.core.errors import Invalid
from apps.poison.models import Body, Poison
from apps.redelivery.models import Delivery, Endpoint
from tests.contracts import broker_kinds
from tests.contracts.conftest import StageOf
from tests.integration.redelivery.endpoint_and_delivery_builders import ADMIN, endpoint
from tests.lane_crash_simulation import Killed, drain_all, draining, dying

pytestmark = pytest.mark.django_db(transaction=True)

ODD = bytes(range(256))
# Hidden messages would have to be waited for after each death.
AT_ONCE = [
    param
    for param in broker_kinds.REAL
    if param.values[0] in {"redis_streams", "rabbitmq"}
]


@pytest.fixture
def stage(request: pytest.FixtureRequest, stage_of: StageOf) -> Any:
    """Return one kind's topic on its stage."""
    return stage_of(request.param)


@pytest.fixture
def quotes() -> Endpoint:
    return endpoint()


@pytest.fixture
def requests(stage: Any, request: pytest.FixtureRequest) -> Topic:
    """Return the topic of the stage, made a topic of requests as an admin does it."""
    kind = request.node.callspec.params["stage"]
    broker = Broker.objects.create(
        name=kind, kind=kind, url=stage.broker.url, options=dict(stage.broker.options)
    )
    topic = Topic.objects.create(
        name="requests",
        broker=broker,
        native_name=stage.topic,
        dead_letter_queue=stage.queue,
        visibility_timeout=stage.settings.visibility_timeout,
        options=dict(stage.settings.options),
    )
    changes = {"request_endpoints": ["stock-*"], "dead_letter_queue": stage.topic}
    topic = set_policies(
        topic=topic,
        policies=Policies.of(topic).changed(changes),
        principal=ADMIN,
        now=clock.now(),
    )
    Lane.objects.create(topic=topic, mode=Mode.CAPTURE.value)
    return topic


def by_headers(**values: bytes) -> tuple[Header, ...]:
    fields = {"endpoint": b"stock-quote", **values}
    return tuple(
        (f"x-poisonweb-{name}".encode(), value) for name, value in fields.items()
    )


def by_json(name: str = "stock-quote", **members: Any) -> bytes:
    return json.dumps({"version": 1, "endpoint": name, **members}).encode()


def contents() -> list[bytes]:
    return [bytes(each.body.content) for each in Delivery.objects.order_by("pk")]


@pytest.mark.parametrize("stage", broker_kinds.REAL, indirect=True)
def test_requests_leave_the_topic_as_deliveries_and_the_others_as_poisons(
    stage: Any, requests: Topic, quotes: Endpoint
) -> None:
    stage.put(
        stage.topic,
        by_json(
            path="/a%2Fb?x=%20",
            method="PUT",
            headers=[["X-Odd", "\xff"]],
            body=base64.b64encode(ODD).decode(),
        ),
    )
    stage.put(stage.topic, b"no request")
    stage.put(stage.topic, by_json("other"))
    expected = [ODD]
    if stage.capabilities.headers is not Headers.NONE:
        headers = by_headers(path=b"/c", method=b"DELETE")
        stage.put(stage.topic, ODD, (*headers, (b"x-poisonweb-http-Accept", b"a/b")))
        expected.append(ODD)

    drain_all(requests, clock.now())

    assert stage.contents(stage.topic) == []
    assert contents() == expected
    deliveries = {each.method: each for each in Delivery.objects.all()}
    put = deliveries["PUT"]
    assert bytes(put.path) == b"/a%2Fb?x=%20"
    assert [bytes(part) for part in put.headers[:2]] == [b"X-Odd", b"\xff"]
    if "DELETE" in deliveries:
        delete = deliveries["DELETE"]
        parts = [bytes(part) for part in delete.headers]
        assert parts == [b"Accept", b"a/b", b"x-poisonweb-hops", b"1"]
        assert bytes(delete.path) == b"/c"
    causes = Poison.objects.values_list("cause", flat=True)
    assert sorted(causes) == ["rejected", "undecodable"]
    bodies = {bytes(each.content) for each in Body.objects.all()}
    assert bodies == {b"no request", by_json("other")}


@pytest.mark.parametrize("stage", broker_kinds.REAL, indirect=True)
def test_the_lane_of_a_topic_of_requests_counts_it(
    stage: Any, requests: Topic, quotes: Endpoint
) -> None:
    for number in range(3):
        stage.put(stage.topic, by_json(path=f"/{number}"))

    admin = brokers.admin_of(requests)
    try:
        assert admin.depth() == 3
    finally:
        admin.close()


@pytest.mark.parametrize("stage", AT_ONCE, indirect=True)
def test_each_request_is_stored_once_at_whatever_step_a_lane_dies(
    stage: Any, requests: Topic, quotes: Endpoint
) -> None:
    expected = Counter[bytes]()
    for at in range(1, 9):
        for number in range(6):
            body = b"%d/%d" % (at, number)
            expected[body] += 1
            stage.put(stage.topic, body, by_headers(path=b"/x"))
        with dying(at), suppress(Killed):
            drain_all(requests, clock.now(), at_once=4)
        drain_all(requests, clock.now(), at_once=4)

    assert Counter(contents()) == expected
    assert stage.contents(stage.topic) == []
    assert not Poison.objects.exists()


@pytest.mark.parametrize("stage", broker_kinds.REAL, indirect=True)
def test_no_other_topic_reads_itself(stage: Any, requests: Topic) -> None:
    policies = Policies.of(requests).changed({"request_endpoints": []})

    with pytest.raises(Invalid) as wrong:
        set_policies(
            topic=requests, policies=policies, principal=ADMIN, now=clock.now()
        )

    assert wrong.value.field == "dead_letter_queue"


@pytest.mark.parametrize("stage", ["redis_streams"], indirect=True)
def test_a_request_whose_lane_dies_often_is_no_dead_letter(
    stage: Any, requests: Topic, quotes: Endpoint
) -> None:
    Topic.objects.update(max_dequeue_count=1, visibility_timeout=0.001)
    stage.put(stage.topic, ODD, by_headers())
    for _ in range(3):
        with draining(requests, clock.now()) as work:
            assert len(work.reader.read(limit=10, wait=0.0)) == 1
            time.sleep(0.01)
            work.monitor_lane()

    assert stage.contents(stage.topic) == [(ODD, by_headers())]
    drain_all(requests, clock.now())
    assert contents() == [ODD]
