"""Which messages of an operation are silent: their number, and another try."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from redis import Redis

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.core.queryset_sql import read_by_index
from apps.poison.models import ItemWindow, Poison
from apps.poison.services import redrive_confirmations_by_token
from apps.team.rights import Principal, Scope
from apps.triage.item_standings import listed_items
from apps.triage.models import Operation
from apps.triage.outcomes_over_time import outcomes_over_time
from apps.triage.progress import progress_of
from apps.triage.services import control, preview_summaries
from apps.triage.services.control import CANCEL
from apps.triage.services.running import SliceEnd
from tests.failure_report_builders import poisons
from tests.integration.api.schema_checking_client import program
from tests.integration.dashboard.pages import get, post, words
from tests.lane_crash_simulation import Killed
from tests.triage_operation_runner import (
    MINUTE,
    confirm,
    counts_of,
    preview,
    run,
    sent_messages,
)

pytestmark = pytest.mark.django_db(transaction=True)


class SecondCallCut(RoutingPublisher):
    """Sends what it is first handed; then the connection breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        self.calls += 1
        if self.calls == 1:
            return super().publish(messages)
        return [PublishOutcome(kind=OutcomeKind.UNKNOWN)] * len(messages)


class SecondCallKilled(SecondCallCut):
    """Sends what it is first handed; then its process is killed."""

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        answers = super().publish(messages)
        if self.calls > 1:
            raise Killed
        return answers


def small(who: Principal, now: datetime, *, window: int) -> Operation:
    """Confirm a requeue of all open messages, in windows of this size."""
    operation = preview(who, now)
    Operation.objects.filter(pk=operation.pk).update(window_size=window)
    return confirm(who, operation, now)


def cancel(operation: Operation, who: Principal, now: datetime) -> None:
    control.change_state(
        CANCEL, operation_id=operation.pk, reason="a test", principal=who, now=now
    )
    run(operation, now)


@pytest.fixture
def cut_off(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> Operation:
    """Return a requeue: two sent, two unknown in the same window, and two waiting."""
    poisons(now, 6)
    operation = small(operator, now, window=4)
    run(operation, now, by=SecondCallCut, most=2)
    return operation


def let_time_pass() -> None:
    """Let everything have been sent and ended eleven minutes earlier than it was."""
    passed = 11 * MINUTE
    Operation.objects.update(finished_at=F("finished_at") - passed)
    ItemWindow.objects.update(marked_at=F("marked_at") - passed)
    Poison.objects.update(sent_at=F("sent_at") - passed)


def silent_number(operation: Operation, who: Principal, now: datetime) -> int:
    return progress_of(operation_id=operation.pk, principal=who, now=now).silent


def silent_in_chart(operation: Operation, now: datetime) -> list[int]:
    """Count those of the chart, by messages and by windows."""
    operation.refresh_from_db()
    charts = [
        outcomes_over_time(operation, now=now, most_read=most) for most in (0, 100)
    ]
    return [sum(each.silent for each in chart.buckets) for chart in charts if chart]


def test_what_is_unknown_is_silent_ten_minutes_after_its_operation_is_cancelled(
    cut_off: Operation, operator: Principal, now: datetime
) -> None:
    cancel(cut_off, operator, now + 5 * MINUTE)

    numbers = {
        minutes: (
            silent_number(cut_off, operator, now + minutes * MINUTE),
            *silent_in_chart(cut_off, now + minutes * MINUTE),
        )
        for minutes in (9, 14, 16)
    }

    assert counts_of(cut_off) == {"sent": 2, "unknown": 2, "waiting": 2}
    assert numbers == {9: (0, 0, 0), 14: (2, 2, 2), 16: (4, 4, 4)}


def test_what_an_operation_may_send_again_is_not_silent(
    cut_off: Operation, operator: Principal, now: datetime
) -> None:
    late = now + 60 * MINUTE

    assert silent_number(cut_off, operator, late) == 2
    assert silent_in_chart(cut_off, late) == [2, 2]


def test_what_a_killed_run_claimed_first_is_silent_too(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 4)
    operation = small(operator, now, window=2)
    with pytest.raises(Killed):
        run(operation, now, by=SecondCallKilled, most=2)
    cancel(operation, operator, now)

    assert counts_of(operation) == {"sent": 2, "unknown": 2}
    assert ItemWindow.objects.get(unknown=2).marked_at is None
    assert silent_number(operation, operator, now + 11 * MINUTE) == 4


def test_a_retry_of_silent_messages_sends_all_of_them_and_no_other(
    cut_off: Operation, stream: Redis, operator: Principal, now: datetime
) -> None:
    cancel(cut_off, operator, now)
    first, *_ = sent_messages(stream)
    token = first[b"x-poisonweb-redrive"].decode()
    redrive_confirmations_by_token.confirm(tokens=[(token, "orders")], now=now)
    late = now + 11 * MINUTE

    early = preview(operator, now, retry_of=cut_off.pk, standings=("silent",))
    again = preview(operator, late, retry_of=cut_off.pk, standings=("silent",))
    run(confirm(operator, again, late), late)

    assert preview_summaries.summarize(operation=early).skipped == (
        ("already sent, no answer yet", 3),
    )
    assert counts_of(again) == {"sent": 3}
    assert silent_number(cut_off, operator, late) == 3
    assert stream.xlen("orders") == 5
    assert Poison.objects.filter(state="redriven", redrives=2).count() == 3


def silent_items(operation: Operation, now: datetime, *, limit: int) -> list[int]:
    """List the numbers of the silent items, read page by page."""
    operation.refresh_from_db()
    numbers, after = list[int](), -1
    while rows := listed_items(
        operation, standing="silent", after=after, limit=limit, now=now
    ):
        assert len(rows) <= limit
        numbers += [row.number for row in rows]
        after = rows[-1].number
    return numbers


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_silent_messages_are_listed_page_by_page_as_they_are_counted(
    cut_off: Operation, stream: Redis, operator: Principal, now: datetime, limit: int
) -> None:
    cancel(cut_off, operator, now + 5 * MINUTE)
    # Their windows were marked later, so that they are not silent yet.
    later = now + 14 * MINUTE
    newer = small(operator, later, window=1)
    run(newer, later)
    ItemWindow.objects.filter(operation=newer.pk, first=0).update(marked_at=now)

    numbers = {
        minutes: silent_items(cut_off, now + minutes * MINUTE, limit=limit)
        for minutes in (9, 14, 16)
    }

    assert numbers == {9: [], 14: [0, 1], 16: [0, 1, 2, 3]}
    assert silent_items(newer, later, limit=limit) == [0]
    assert silent_number(newer, operator, later) == 1


def test_a_late_answer_after_a_cancel_is_listed_once_it_is_counted(
    cut_off: Operation, operator: Principal, now: datetime
) -> None:
    cancel(cut_off, operator, now)
    # The broker answered for one of its messages when the operation was over.
    ItemWindow.objects.filter(first=0).update(marked_at=now + 5 * MINUTE)

    for minutes, expected in ((11, 0), (16, 4)):
        late = now + minutes * MINUTE
        assert silent_number(cut_off, operator, late) == expected
        assert len(silent_items(cut_off, late, limit=100)) == expected


def test_a_page_of_silent_messages_reads_no_more_items_of_a_larger_operation(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    late = now + 11 * MINUTE
    reads = []

    for number in (6, 60):
        poisons(now, number)
        operation = small(operator, now, window=2)
        while run(operation, now) is not SliceEnd.DONE:
            pass
        assert silent_number(operation, operator, late) == number
        reads.append([items_read(operation, late, after=at) for at in (-1, 3)])

    few, many = reads
    assert few == many
    assert max(many) <= 2 * 2


def items_read(operation: Operation, now: datetime, *, after: int) -> int:
    """Return how many items the list of two silent ones reads, as Postgres counts."""
    with CaptureQueriesContext(connection) as queries:
        rows = listed_items(operation, standing="silent", after=after, limit=2, now=now)
    assert len(rows) == 2
    (statement,) = [q["sql"] for q in queries if "poison_window" in q["sql"]]
    with connection.cursor() as cursor, transaction.atomic():
        read_by_index()
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING off) {statement}")
        plan = "\n".join(row for (row,) in cursor.fetchall())
    scans = re.findall(
        r"on triage_selected_item.*?actual rows=([\d.]+) loops=(\d+)", plan
    )
    assert scans, plan
    return sum(round(float(rows)) * int(loops) for rows, loops in scans)


def test_the_page_of_a_cancelled_operation_offers_its_silent_messages(
    anna: Client, cut_off: Operation, operator: Principal, now: datetime
) -> None:
    cancel(cut_off, operator, now)
    at_once = words(get(anna, f"/operations/{cut_off.pk}"))
    let_time_pass()

    page = get(anna, f"/operations/{cut_off.pk}")
    listed = get(anna, f"/operations/{cut_off.pk}/items?standing=silent")
    address = post(anna, f"/operations/{cut_off.pk}/retry", 302, standing="silent")

    assert "2 are unknown: they may have been sent." in at_once
    assert "Retry these" not in at_once
    assert "4 of 4 are silent." in words(page)
    assert "4 silent Retry these" in words(page)
    link = f'href="/operations/{cut_off.pk}/items?standing=silent"'
    assert f"<a {link}>4 silent</a>" in page
    assert f"<a {link}>4 of 4 are silent.</a>" in page
    assert '?standing=silent" aria-current="page"' in listed
    assert listed.count('href="/messages/') == 4
    assert "Requeue 4 messages?" in get(anna, address)


def test_the_api_counts_and_previews_the_silent_messages_of_a_cancelled_operation(
    cut_off: Operation, operator: Principal, now: datetime
) -> None:
    cancel(cut_off, operator, now)
    let_time_pass()
    caller = program(Scope.OPERATIONS_READ, Scope.OPERATIONS_WRITE)
    address = f"operations/{cut_off.pk}/retry-failed"

    detail = caller.get(f"operations/{cut_off.pk}").json
    again = caller.post(address, {"standings": ["silent"]})
    path = f"operations/{cut_off.pk}/items"
    first = caller.get(path, standing="silent", limit=3).json
    rest = caller.get(path, standing="silent", limit=3, after=first["next"]).json

    assert (detail["silent"], detail["counts"]["unknown"]) == (4, 2)
    assert (again.status, again.json["will_act"]) == (200, 4)
    standings = [each["standing"] for each in (*first["results"], *rest["results"])]
    assert standings == ["sent", "sent", "unknown", "unknown"]
    assert rest["next"] is None
