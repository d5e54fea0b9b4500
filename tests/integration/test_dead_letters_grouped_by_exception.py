"""Dead letters of frameworks become problems named by their exceptions."""

from __future__ import annotations

from datetime import datetime
from itertools import count

import pytest

from apps.brokers.adapter_contract import DeadLetter, Header
from apps.brokers.adapters.memory import CAPABILITIES
from apps.brokers.models import Topic
from apps.capture.intake.occurrence import from_dead_letter
from apps.capture.intake.services import write
from apps.poison.models import Poison, Problem
from tests.unit.test_framework_failure_headers import (
    NSERVICEBUS,
    SPRING_AMQP,
    SPRING_KAFKA,
)

pytestmark = pytest.mark.django_db

_bookmarks = count(1)


def capture(now: datetime, *letters: tuple[Header, ...]) -> None:
    topic, _ = Topic.objects.get_or_create(name="orders", native_name="orders")
    drained = [
        DeadLetter(
            queue="orders-dead",
            bookmark=str(next(_bookmarks)),
            body=b'{"id": 13}',
            headers=headers,
            size=0,
        )
        for headers in letters
    ]
    occurrences = [
        from_dead_letter(letter, topic=topic, capabilities=CAPABILITIES, now=now)
        for letter in drained
    ]
    write(occurrences=occurrences, now=now)


def test_each_exception_of_a_framework_is_a_problem_of_its_own(now: datetime) -> None:
    nothing: tuple[Header, ...] = ((b"content-type", b"application/json"),)

    capture(now, SPRING_KAFKA, SPRING_AMQP, NSERVICEBUS, nothing)

    titles = {problem.title for problem in Problem.objects.all()}
    assert titles == {
        "CardRefusedException",
        "IllegalStateException",
        "InvalidOperationException",
        "rejected",
    }


def test_the_same_exception_with_other_values_is_the_same_problem(
    now: datetime,
) -> None:
    again = tuple((name, value.replace(b"13", b"14")) for name, value in NSERVICEBUS)

    capture(now, NSERVICEBUS, again)

    assert Problem.objects.count() == 1
    assert Poison.objects.count() == 2


def test_a_problem_has_the_exception_that_the_framework_reports(now: datetime) -> None:
    capture(now, NSERVICEBUS)

    poison = Poison.objects.get()
    assert poison.error_type == "System.InvalidOperationException"
    assert poison.error_message == "The order 13 is closed."
    assert (poison.consumer_group, poison.cause) == ("Orders", "exhausted")
    assert poison.last_failed_at == now.replace(
        hour=11, minute=59, second=30, microsecond=269001
    )


def test_tasks_without_an_exception_differ_by_their_name(now: datetime) -> None:
    def task(name: bytes) -> tuple[Header, ...]:
        ran = ((b"lang", b"py"), (b"task", name), (b"id", b"1"))
        return ((b"content-type", b"application/json"), *ran)

    capture(now, task(b"shop.charge"), task(b"shop.ship"), task(b"shop.ship"))

    summaries = sorted(problem.summary for problem in Problem.objects.all())
    assert len(summaries) == 2
    assert "shop.charge" in summaries[0]
