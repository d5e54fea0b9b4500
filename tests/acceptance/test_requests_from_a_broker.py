"""From a message on a broker to the ledger of a back end, while processes are killed.

The lanes, the sender and the back end are processes of their own.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis import Redis

from apps.brokers.models import Topic
from apps.capture.models import Mode
from apps.capture.topic_and_lane_configuration import (
    LaneChange,
    TopicChange,
    register,
)
from apps.core import clock
from apps.poison.models import Body, Poison
from apps.redelivery.models import Delivery
from tests.delivery_back_end import BackEnd, back_end_in
from tests.integration.redelivery.endpoint_and_delivery_builders import ADMIN, endpoint
from tests.registered_brokers import broker_named
from tests.sender_processes import LaneProcess, SenderProcess, lane_process, senders
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

NUMBER = 400
KILLS = 12


class Feed(NamedTuple):
    """A topic that feeds an endpoint, and what is between it and the back end."""

    service: BackEnd
    lanes: LaneProcess
    sender: SenderProcess


@pytest.fixture
def feed(tmp_path: Path, redis_url: str) -> Iterator[Feed]:
    with ExitStack() as stack:
        service = stack.enter_context(back_end_in(tmp_path / "service"))
        endpoint(target=service.url, retries=20, interval=1.0, repeatable="always")
        make_topic(redis_url)
        lanes = stack.enter_context(lane_process(tmp_path))
        (sender,) = stack.enter_context(senders(tmp_path, number=1))
        yield Feed(service=service, lanes=lanes, sender=sender)


def make_topic(redis_url: str) -> None:
    """Register the topic as the API does, in one call."""
    broker = broker_named("redis", kind="redis_streams", url=redis_url, now=clock.now())
    change = TopicChange(
        name="quote-requests",
        broker=broker.name,
        policies={
            "dead_letter_queue": "quote-requests",
            "request_endpoints": ["stock-*"],
        },
        lane=LaneChange(mode=Mode.CAPTURE, tee_queue="", paused=None),
        reason="a test",
    )
    register(change=change, principal=ADMIN, now=clock.now())
    assert Topic.objects.get(name="quote-requests").takes_requests


def put(stream: Redis, number: int) -> None:
    """Put a request, in either form; some take several tries."""
    fields: dict[Any, Any]
    path = f"/down-for/{number % 2}?n={number}"
    if number % 3:
        fields = {
            "body": b"request %d" % number,
            "x-poisonweb-endpoint": b"stock-quote",
            "x-poisonweb-path": path.encode(),
            "x-poisonweb-idempotency-key": b"order-%d" % number,
        }
    else:
        envelope = {
            "version": 1,
            "endpoint": "stock-quote",
            "path": path,
            "method": "PUT",
            "body": base64.b64encode(b"request %d" % number).decode(),
        }
        fields = {"body": json.dumps(envelope).encode()}
    stream.xadd("quote-requests", fields)


def test_each_request_has_its_effect_once_though_lanes_senders_and_service_are_killed(
    feed: Feed, stream: Redis
) -> None:
    chance = random.Random(13)
    for kill in range(KILLS):
        for number in range(kill * NUMBER // KILLS, (kill + 1) * NUMBER // KILLS):
            put(stream, number)
        stream.xadd("quote-requests", {"body": b"no request %d" % kill})
        time.sleep(chance.uniform(0, 0.4))
        feed.lanes.kill()
        feed.lanes.start()
        if kill % 4 == 3:
            feed.sender.kill()
            feed.service.kill()
            feed.service.start()
            feed.sender.start()

    # What a killed sender had claimed waits until its claim ends.
    wait_until(
        lambda: Delivery.objects.filter(state="delivered").count() == NUMBER,
        seconds=300,
    )

    assert stream.xlen("quote-requests") == 0
    arrived = {each["key"]: each for each in feed.service.requests()}
    bodies = sorted(each["body"] for each in arrived.values())
    assert bodies == sorted(f"request {number}" for number in range(NUMBER))
    # One effect for each key, and the keys of the producer are its own.
    effects = Counter(feed.service.effects())
    assert set(effects.values()) == {1}
    assert effects.keys() == arrived.keys()
    own = {f"order-{number}" for number in range(NUMBER) if number % 3}
    assert own < effects.keys()
    # The back end and our rows tell the same of each delivery.
    keys = Delivery.objects.values_list("idempotency_key", flat=True)
    assert Counter(keys) == effects
    methods = Counter(each["method"] for each in arrived.values())
    assert methods == {"PUT": (NUMBER + 2) // 3, "POST": NUMBER - (NUMBER + 2) // 3}
    refused = {bytes(each.content) for each in Body.objects.all()}
    assert refused == {b"no request %d" % kill for kill in range(KILLS)}
    assert set(Poison.objects.values_list("cause", flat=True)) == {"undecodable"}
