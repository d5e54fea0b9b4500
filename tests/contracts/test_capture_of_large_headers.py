"""Dead letters with headers of any length are stored and never stop their lane."""

from __future__ import annotations

import base64
import random
from contextlib import closing
from datetime import datetime

import pytest

from apps.brokers.adapter_contract import Outbound, OutcomeKind
from apps.brokers.models import Topic
from apps.capture.models import HeldDeadLetter
from apps.poison.models import Poison
from poisonguard import contract
from tests.contracts.test_message_lifecycle import drain, registered
from tests.contracts.topic_fixture_interface import RealStage
from tests.unit.test_framework_failure_headers import EVERY

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.present]

OURS = [name.encode() for name in contract.DEAD_LETTER_HEADERS]
DOCUMENTED = list(dict.fromkeys([*OURS, *(name for name, _ in EVERY)]))
# The largest value that a broker carries in one header, with room for the rest.
LARGEST = {
    "redis_streams": 1_000_000,
    "sqs": 1_000_000,
    "rabbitmq": 100_000,
    "azure_queue": 30_000,
}


@pytest.fixture
def topic(real_stage: RealStage, kind: str, now: datetime) -> Topic:
    return registered(real_stage, kind, now)


def letters(size: int) -> bytes:
    """Return incompressible text, which does not fit into an index row."""
    return base64.b64encode(random.randbytes(size), altchars=b"xy")[:size]


@pytest.mark.parametrize(
    ("names", "size"),
    [
        # The limits of the fields that a header may become, and one more character.
        pytest.param(OURS, contract.NAME_LIMIT + 1, id="longer than a name"),
        pytest.param(OURS, contract.TEXT_LIMIT + 1, id="longer than a text"),
        pytest.param(DOCUMENTED, 3_000, id="longer than an entry of an index"),
        pytest.param(DOCUMENTED, None, id="the largest"),
    ],
)
def test_a_header_of_any_length_is_captured_and_delays_no_other_dead_letter(
    real_stage: RealStage, topic: Topic, kind: str, names: list[bytes], size: int | None
) -> None:
    size = min(size or LARGEST[kind], LARGEST[kind])
    with closing(real_stage.publisher()) as producer:
        outcomes = producer.publish(
            [
                Outbound(
                    topic=real_stage.queue,
                    body=str(number).encode(),
                    headers=((name, letters(size)),),
                )
                for number, name in enumerate(names)
            ]
        )
    real_stage.put(real_stage.queue, b"good")
    confirmed = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.SENT]

    drain(topic)

    assert len(confirmed) > len(names) // 2 or kind == "azure_queue"
    assert HeldDeadLetter.objects.count() == 0
    assert Poison.objects.count() == len(confirmed) + 1
    assert real_stage.contents(real_stage.queue) == []
