"""Every text may have its documented length, even in four-byte characters."""

from __future__ import annotations

import random
import uuid
from datetime import datetime
from typing import Any

import pytest

from apps.team.rights import Scope
from poisonguard.contract import HEADERS_LIMIT, NAME_LIMIT, TEXT_LIMIT
from tests.failure_report_builders import failure, guard_word
from tests.integration.api.schema_checking_client import Caller, program

pytestmark = pytest.mark.django_db

NAMES = ("topic", "consumer_group", "client_name", "sub_id", "handler_version", "host")
TEXTS = ("bookmark", "message_id", "content_type", "redrive")


@pytest.fixture
def consumer() -> Caller:
    return program(
        *(Scope.CAPTURE_WRITE, Scope.POSITIONS_WRITE, Scope.SKIPS_READ),
    )


def longest(size: int) -> str:
    """Give a random text of four-byte characters, which cannot be compressed."""
    return "".join(chr(random.randrange(0x20000, 0x2A6D0)) for _ in range(size))


@pytest.mark.parametrize(
    ("field", "limit"),
    [
        *((name, NAME_LIMIT) for name in (*NAMES, "publisher")),
        *((name, TEXT_LIMIT) for name in TEXTS),
    ],
)
def test_a_text_of_a_failure_is_accepted_up_to_its_limit(
    consumer: Caller, now: datetime, field: str, limit: int
) -> None:
    members = [failure(now, **{field: longest(size)}) for size in (limit, limit + 1)]
    if field == "publisher":
        members = [{**member, "seq": 1} for member in members]

    answers = consumer.post("failures", {"failures": [*members, failure(now)]}).results

    statuses = [answer["status"] for answer in answers]
    assert statuses == ["created", "rejected", "created"]
    assert answers[1]["pointer"] == f"/{field}"


def test_all_names_of_a_failure_may_have_their_longest_at_once(
    consumer: Caller, now: datetime
) -> None:
    names = {name: longest(NAME_LIMIT) for name in NAMES}

    [answer] = consumer.post("failures", {"failures": [failure(now, **names)]}).results

    assert answer["status"] == "created"


@pytest.mark.parametrize("field", ["type", "message", "traceback"])
def test_an_exception_may_have_texts_of_any_length(
    consumer: Caller, now: datetime, field: str
) -> None:
    said = {"type": "E", "message": "m", "traceback": "t", field: longest(300_000)}

    [answer] = consumer.post(
        "failures", {"failures": [failure(now, exception=said)]}
    ).results

    assert answer["status"] == "created"


def test_a_message_with_too_many_headers_is_rejected(
    consumer: Caller, now: datetime
) -> None:
    members = [
        failure(now, headers=[("a", b"b")] * number)
        for number in (HEADERS_LIMIT, HEADERS_LIMIT + 1)
    ]

    answers = consumer.post("failures", {"failures": members}).results

    assert [answer["status"] for answer in answers] == ["created", "rejected"]
    assert answers[1]["pointer"] == "/headers"


def test_a_counter_and_a_guard_may_have_the_longest_names(
    consumer: Caller, now: datetime
) -> None:
    shared = {name: longest(NAME_LIMIT) for name in NAMES[:3]}
    counter = {
        "reporter": str(uuid.uuid4()),
        "sequence": 1,
        "handled": 1,
        "failed": 0,
        "skipped": 0,
        "retried": 0,
        "duration_ms_hist": {},
        "minute": now.replace(second=0, microsecond=0).isoformat(),
        **shared,
    }
    words: dict[str, Any] = {
        **shared,
        "host": longest(NAME_LIMIT),
        "version": longest(NAME_LIMIT),
        "handler_version": longest(NAME_LIMIT),
    }

    answer = consumer.post(
        "counters", {"counters": [counter], "guards": [guard_word(now, **words)]}
    )

    assert answer.status == 200, answer.json
    assert "rejected" not in str(answer.json)


def test_a_position_may_have_the_longest_names(consumer: Caller) -> None:
    holder = {name: longest(NAME_LIMIT) for name in NAMES[:4]}

    answer = consumer.post("positions/open", {"instance": str(uuid.uuid4()), **holder})

    assert answer.status == 200, answer.json
