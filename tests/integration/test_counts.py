"""Counts of messages are kept by Postgres, gathered, and checked every night."""

from __future__ import annotations

import importlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction
from redis import Redis

from apps.brokers.models import Topic
from apps.capture.tasks import check_counts, gather_counts
from apps.core import clock
from apps.dashboard.selectors import health
from apps.poison import poison_counts_by_state
from apps.poison.models import (
    Poison,
    PoisonCount,
    PoisonCountChange,
    PoisonCountCheck,
    Problem,
)
from apps.poison.services import (
    counts,
    drop_restore_and_give_back,
    redrive_confirmations_by_token,
)
from apps.poison.services.counts import WrongCount
from apps.poison.states import DisplayState
from apps.team.rights import Principal
from apps.triage.operation_states import Verb
from tests.failure_report_builders import capture, drop, failure, poisons
from tests.races import at_once, beside_writers
from tests.triage_operation_runner import confirm, preview, redriven, run

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)
KEEPING: Any = importlib.import_module("apps.poison.migrations.0015_counts_by_triggers")
FULL_COUNT = """
SELECT problem_id, CASE WHEN state = 'moved' AND moved_to_id = topic_id
                   THEN 'given back' WHEN state = 'open' AND recurrences > 0
                   THEN 'came back' ELSE state END, count(*)
FROM poison_poison GROUP BY 1, 2
"""
KEPT = """
SELECT problem_id, state, sum(number) FROM (
    SELECT problem_id, state, number FROM poison_count
    UNION ALL SELECT problem_id, state, number FROM poison_count_change
) one GROUP BY 1, 2 HAVING sum(number) <> 0
"""


def numbers(statement: str) -> dict[tuple[int, str], int]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return {(problem, state): int(n) for problem, state, n in cursor.fetchall()}


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_whatever_becomes_of_messages_their_counts_follow(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    silent, handled, back, dropped, restored, deleted, other = poisons(now, 7)
    tokens = {each.pk: redriven(each, now) for each in (silent, handled, back)}
    redrive_confirmations_by_token.confirm(
        tokens=[(tokens[handled.pk], "orders")], now=now
    )
    again = failure(
        now,
        redrive=tokens[back.pk],
        exception={"type": "Other", "message": "", "traceback": ""},
    )
    capture(now, again)
    drop(now, dropped, restored)
    with transaction.atomic():
        drop_restore_and_give_back.restore(poisons=[restored.pk])
    by_operation = preview(operator, now, verb=Verb.DROP, ids=(other.pk,))
    run(confirm(operator, by_operation, now), now)
    execute(f"DELETE FROM poison_body WHERE poison_id = {deleted.pk}")
    execute(f"DELETE FROM poison_poison WHERE id = {deleted.pk}")

    problem, new_problem = Problem.objects.order_by("pk")

    assert numbers(FULL_COUNT) == {
        (problem.pk, "redriven"): 1,
        (problem.pk, "confirmed"): 1,
        (problem.pk, "dropped"): 2,
        (problem.pk, "open"): 1,
        (new_problem.pk, "came back"): 1,
    }
    assert numbers(KEPT) == numbers(FULL_COUNT)
    assert counts.check(now=now) == []


def test_what_was_given_back_is_counted_apart_and_as_sent(now: datetime) -> None:
    messages = poisons(now, 3)
    topic, problem = messages[0].topic_id, messages[0].problem_id
    elsewhere = Topic.objects.create(name="elsewhere", native_name="elsewhere")
    for message, to in ((messages[0], topic), (messages[1], elsewhere.pk)):
        Poison.objects.filter(pk=message.pk).update(
            state="moved", moved_to=to, redrives=1, sent_at=now
        )

    of_problem = poison_counts_by_state.by_problem([problem])[problem]
    of_topic = poison_counts_by_state.by_topic([topic])[topic]

    assert of_problem == of_topic
    assert of_problem.given_back == 1
    assert of_problem.states[DisplayState.SENT] == 2
    assert of_problem.states[DisplayState.OPEN] == 1


def test_gathered_counts_are_the_same_and_nothing_is_left_to_gather(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "AT_ONCE", 2)
    messages = [poisons(now, 1, consumer_group=f"{n % 2}")[0] for n in range(5)]
    gather_counts()
    drop(now, *messages[:3])
    before = numbers(KEPT)

    gather_counts()

    assert numbers(KEPT) == before == numbers(FULL_COUNT)
    assert not PoisonCountChange.objects.exists()
    assert sum(PoisonCount.objects.values_list("number", flat=True)) == 5


def test_many_writers_at_once_never_wait_in_a_circle_and_count_right(
    now: datetime,
) -> None:
    seeds = [poison.pk for poison in poisons(now, 40)]
    until = time.monotonic() + 3
    captured: list[int] = []

    def report() -> None:
        some = [failure(now, consumer_group=f"{n % 3}") for n in range(10)]
        random.shuffle(some)
        captured.append(len(capture(now, *some)))

    def decide() -> None:
        chosen = random.sample(seeds, 10)
        with transaction.atomic():
            drop_restore_and_give_back.drop(poisons=chosen[:7], now=now)
        with transaction.atomic():
            drop_restore_and_give_back.restore(poisons=chosen[3:])

    def undo() -> None:
        with transaction.atomic():
            drop_restore_and_give_back.drop(poisons=random.sample(seeds, 5), now=now)
            transaction.set_rollback(True)

    def gather() -> None:
        counts.gather()

    def check() -> None:
        assert counts.check(now=now) in (None, [])

    jobs = [report] * 4 + [decide] * 4 + [undo, gather, gather, check]
    at_once(*(again_until(until, job) for job in jobs))

    assert numbers(KEPT) == numbers(FULL_COUNT)
    assert sum(numbers(KEPT).values()) == 40 + sum(captured)
    assert counts.check(now=now) == []


def again_until(until: float, job: Callable[[], None]) -> Callable[[], None]:
    def work() -> None:
        while time.monotonic() < until:
            job()

    return work


def test_the_nightly_check_mends_a_wrong_count_and_says_so(
    operator: Principal, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    (message, *_) = poisons(now, 3)
    problem, topic = message.problem_id, message.topic_id
    counts.gather()
    PoisonCount.objects.update(number=7)

    with caplog.at_level(logging.WARNING):
        check_counts()
    said = f"problem {problem} on topic {topic}: 7 open instead of 3"
    alarms = counts_alarms(operator)
    stored = PoisonCountCheck.objects.get()

    assert numbers(KEPT) == {(problem, "open"): 3}
    assert (stored.wrong, stored.detail) == (1, said)
    assert f"1 counts of messages were wrong, and are mended: {said}" in caplog.text
    assert alarms == [f"1 were wrong: {said}; counted again"]
    assert counts.check(now=clock.now()) == []
    assert counts_alarms(operator) == []


def counts_alarms(who: Principal) -> list[str]:
    alarms = health.check(who, now=clock.now()).alarms
    return [each.detail for each in alarms if each.component == "Counts of messages"]


def test_counts_that_are_missing_or_too_many_are_mended(now: datetime) -> None:
    (message, *_) = poisons(now, 2)
    problem, topic = message.problem_id, message.topic_id
    PoisonCountChange.objects.all().delete()
    PoisonCount.objects.create(
        problem_id=problem, topic_id=topic, state="dropped", number=4
    )

    wrong = counts.check(now=now)

    assert wrong == [
        WrongCount(problem, topic, "dropped", -4, 4),
        WrongCount(problem, topic, "open", 2, 0),
    ]
    assert numbers(KEPT) == numbers(FULL_COUNT)


def test_a_check_while_somebody_writes_is_right_for_what_is_committed_later(
    now: datetime,
) -> None:
    messages = poisons(now, 3)
    counts.gather()
    PoisonCount.objects.update(number=9)
    may_commit, has_written = threading.Event(), threading.Event()

    def write() -> None:
        with transaction.atomic():
            drop_restore_and_give_back.drop(poisons=[messages[0].pk], now=now)
            has_written.set()
            may_commit.wait(20)

    def check() -> None:
        has_written.wait(20)
        counts.check(now=now)
        may_commit.set()

    at_once(write, check)
    assert numbers(KEPT) == numbers(FULL_COUNT)


def test_counts_are_checked_once_a_day(now: datetime) -> None:
    midnight = now.replace(hour=0, minute=0, second=0)
    due = [counts.is_check_due(now=now)]
    counts.check(now=now)
    due += [
        counts.is_check_due(now=at)
        for at in (now, midnight + DAY - timedelta(seconds=1), midnight + DAY)
    ]

    assert due == [True, False, False, True]


def test_two_checks_never_mend_the_same_count_twice(now: datetime) -> None:
    poisons(now, 3)
    counts.gather()
    PoisonCount.objects.update(number=9)
    results: list[Sequence[object] | None] = []

    def check() -> None:
        results.append(counts.check(now=now))

    at_once(*[check] * 6)
    assert numbers(KEPT) == numbers(FULL_COUNT)
    assert sum(bool(result) for result in results) == 1


def test_counts_begin_right_although_others_write_during_the_upgrade(
    now: datetime,
) -> None:
    count = KEEPING.execute
    poisons(now, 50)
    with as_before_the_upgrade():

        def write() -> None:
            capture(now, failure(now, consumer_group=f"{random.randrange(3)}"))
            chosen = random.sample(range(1, 51), 5)
            with transaction.atomic():
                drop_restore_and_give_back.drop(poisons=chosen[:3], now=now)
            with transaction.atomic():
                drop_restore_and_give_back.restore(poisons=chosen[3:])

        def upgrade(await_writers: Callable[[], None]) -> None:
            def count_beside_writers(cursor: Any, *statement: str) -> None:
                count(cursor, *statement)
                await_writers()

            with (
                pytest.MonkeyPatch.context() as patch,
                connection.schema_editor(atomic=False) as editor,
            ):
                patch.setattr(KEEPING, "execute", count_beside_writers)
                KEEPING.keep(apps, editor)

        beside_writers(write, upgrade)
        # The block would count once more at its end.
        by_triggers = numbers(KEPT)
        there = numbers(FULL_COUNT)

    assert by_triggers == there


@contextmanager
def as_before_the_upgrade() -> Any:
    """Take the triggers and what they counted away; they are there again afterwards."""
    with connection.schema_editor(atomic=False) as editor:
        KEEPING.forget(apps, editor)
    execute("DELETE FROM poison_count_change")
    try:
        yield
    finally:
        with connection.schema_editor(atomic=False) as editor:
            KEEPING.keep(apps, editor)


def test_an_upgrade_that_was_killed_can_begin_again(now: datetime) -> None:
    poisons(now, 4)

    with as_before_the_upgrade(), connection.schema_editor(atomic=False) as editor:
        KEEPING.keep(apps, editor)
        KEEPING.keep(apps, editor)
        after_two = numbers(KEPT)

    assert after_two == numbers(FULL_COUNT)
