"""The page of an operation: what it still judges, its counts, and where to go next."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from django.test import Client
from redis import Redis

from apps.brokers.models import Topic
from apps.poison.models import Problem
from apps.poison.query_language import Query
from apps.team.rights import Principal
from apps.triage.models import Operation, SkippedItem
from apps.triage.operation_states import OperationState, Verb
from apps.triage.services import confirm_and_undo
from tests.failure_report_builders import capture, failure, poisons
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.test_operations_list import (
    counted,
    decided,
    item,
    waiting,
)
from tests.triage_operation_runner import confirm, preview, run

pytestmark = pytest.mark.django_db(transaction=True)


def taking_hold(client: Client, operation: Operation) -> list[str]:
    """List the numbers of messages that an operation holds, as on its page."""
    page = words(get(client, f"/operations/{operation.pk}"))
    return re.findall(r"Taking hold \([^)]*\)", page)


def test_a_large_requeue_shows_how_many_messages_it_has_hold_of(
    anna: Client,
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirm_and_undo, "JUDGED_AT_ONCE", 0)
    poisons(now, 3)
    operation = confirm(operator, preview(operator, now), now)
    this = Operation.objects.filter(pk=operation.pk)

    queued = taking_hold(anna, operation)
    this.update(judged=2, state=OperationState.RUNNING)
    half = taking_hold(anna, operation)
    this.update(state=OperationState.PAUSED)
    paused = taking_hold(anna, operation)
    this.update(judged=0, state=OperationState.QUEUED)
    run(operation, now)

    assert queued == ["Taking hold (0 of 3)"]
    assert half == ["Taking hold (2 of 3)"]
    assert (paused, taking_hold(anna, operation)) == ([], [])


def test_a_drop_takes_hold_of_nothing(
    anna: Client,
    orders: Topic,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirm_and_undo, "JUDGED_AT_ONCE", 0)
    poisons(now, 3)
    operation = confirm(operator, preview(operator, now, verb=Verb.DROP), now)

    assert taking_hold(anna, operation) == []


def problem_of(now: datetime, error: str, *, number: int) -> Problem:
    """Let so many messages fail by this error, and return their problem."""
    exception = {"type": error, "message": "no", "traceback": ""}
    capture(now, *(failure(now, exception=exception) for _ in range(number)))
    return Problem.objects.latest("pk")


def links_on(client: Client, operation: Operation) -> list[tuple[str, str]]:
    """List buttons on the page of an operation that lead to problems, with texts."""
    page = get(client, f"/operations/{operation.pk}")
    return re.findall(r'<a class="button" href="(/problems/\d+)">([^<]*)</a>', page)


def test_the_page_leads_back_to_its_problem_and_on_to_the_next_open_one(
    anna: Client, orders: Topic, operator: Principal, now: datetime
) -> None:
    other = problem_of(now, "KeyError", number=1)
    problem = problem_of(now, "TypeError", number=3)
    whole = Query.parse(f"problem:{problem.pk}")
    own = confirm(operator, preview(operator, now, query=whole, verb=Verb.DROP), now)
    back = f"/problems/{problem.pk}"

    run(own, now)
    after_all = links_on(anna, own)
    problem_of(now, "TypeError", number=2)
    again = links_on(anna, own)
    rest = Query.parse(f"problem:{other.pk}")
    run(confirm(operator, preview(operator, now, query=rest, verb=Verb.DROP), now), now)

    assert after_all == [
        (back, "Back to problem (0 open)"),
        (f"/problems/{other.pk}", "Next problem"),
    ]
    assert again[0] == (back, "Back to problem (2 open)")
    assert links_on(anna, own) == [(back, "Back to problem (2 open)")]


def test_an_operation_on_no_single_problem_leads_to_none(
    anna: Client, orders: Topic, operator: Principal, now: datetime
) -> None:
    problem_of(now, "TypeError", number=1)
    operation = confirm(operator, preview(operator, now, verb=Verb.DROP), now)

    assert links_on(anna, operation) == []


OUTCOMES = ("sent", "confirmed", "recurred", "refused", "moved", "unknown")


def test_every_count_is_a_link_to_as_many_messages(anna: Client, now: datetime) -> None:
    """Each standing of a requeue has a number of its own: 2, 3, 4 and so on."""
    numbers = {name: number for number, name in enumerate(OUTCOMES, start=2)}
    numbers |= {"skipped": 8, "waiting": 9}
    total = sum(numbers.values())
    operation = decided(now, total=total, judged=total)
    messages = iter(poisons(now, total))
    for name in OUTCOMES:
        for _ in range(numbers[name]):
            item(operation, next(messages), name, now)
    for _ in range(numbers["skipped"]):
        number = counted(operation, next(messages), "skipped")
        SkippedItem.objects.create(operation=operation, number=number, reason="so")
    for message in messages:
        waiting(operation, message)

    page = get(anna, f"/operations/{operation.pk}")
    counts = page.partition('<dl class="counts">')[2].partition("</dl>")[0]
    links = dict(re.findall(r'<dd><a href="([^"]+)">(\d+)</a></dd>', counts))

    address = f"/operations/{operation.pk}/items?standing="
    assert links == {f"{address}{name}": str(n) for name, n in numbers.items()}
    listed = {path: get(anna, path).count('href="/messages/') for path in links}
    assert listed == {path: int(number) for path, number in links.items()}
