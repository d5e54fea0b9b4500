"""The help page explains the terms, and its examples work as written."""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from html import unescape

import pytest
import redis
from django.core.management import call_command
from django.test import Client

from apps.brokers.models import Topic
from apps.capture.intake.services import CaptureStatus
from apps.dashboard import first_message_examples
from apps.poison.models import Poison
from apps.poison.query_language import Query
from tests.failure_report_builders import capture

pytestmark = pytest.mark.django_db


@pytest.fixture
def page(anna: Client) -> str:
    return anna.get("/help").content.decode()


def test_it_has_the_drawing_the_states_and_the_way_to_the_first_message(
    page: str,
) -> None:
    expected = (
        'role="img"',
        'id="first"',
        "Handled",
        "came back",
        "docs/connect-a-consumer.md",
    )

    assert [part for part in expected if part not in page] == []


def test_the_failure_of_its_example_is_captured(now: datetime) -> None:
    (answer,) = capture(now, first_message_examples.failure(now=now))

    assert answer.status is CaptureStatus.CREATED


@pytest.mark.django_db(transaction=True)
def test_the_dead_letter_of_its_example_is_captured(
    orders: Topic, stream: redis.Redis
) -> None:
    _, *command = shlex.split(first_message_examples.DEAD_LETTER.replace("\\\n", ""))

    stream.execute_command(*command)
    call_command("capture", "orders")

    poison = Poison.objects.get()
    assert (poison.cause, poison.error_type) == ("fatal", "ValueError")
    assert (poison.error_message, poison.consumer_group) == (
        "no such customer",
        "billing",
    )


def test_its_example_can_be_pasted_into_a_shell(page: str) -> None:
    (example,) = re.findall(r'<pre[^>]*id="by-api"[^>]*>(.*?)</pre>', page, re.DOTALL)

    assert unescape(example).startswith("curl -fsS")
    assert "$API_KEY" in example
    assert "/api/v1/failures" in example


def test_every_term_that_it_names_is_understood(page: str) -> None:
    terms = re.findall(r'<th scope="row"><code>(.*?)</code>', page)

    parsed = [str(Query.parse(unescape(term))) for term in terms]

    assert len(parsed) == 7
