"""What a preview shows is counted once, and no page reads all items of an operation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.brokers.models import Topic
from apps.core.statement_timeouts import TooSlow
from apps.dashboard.selectors import operation_previews, operation_progress
from apps.poison.models import Poison
from apps.poison.query_language import Query
from apps.team.rights import Principal
from apps.triage import preview_breakdown as breakdown_module
from apps.triage.errors import NotTaken
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import STANDINGS, Verb
from apps.triage.preview_breakdown import ItemBreakdown, Largest
from apps.triage.services import (
    confirm_and_undo,
    preview_breakdown_counting,
    preview_summaries,
    previews,
)
from tests.failure_report_builders import capture, drop, failure, poisons
from tests.triage_operation_runner import (
    AwayPublisher,
    confirm,
    counts_of,
    preview,
    run,
)

pytestmark = pytest.mark.django_db(transaction=True)

EVERYTHING = Query.parse("")
HOUR = timedelta(hours=1)


def preview_by_worker(who: Principal, now: datetime, **selection: object) -> Operation:
    """Preview as a large selection: a worker takes the items."""
    operation = preview(who, now, at_once=0, **selection)
    previews.take(operation_id=operation.pk, now=now)
    operation.refresh_from_db()
    return operation


def test_messages_are_counted_by_all_that_a_preview_shows(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now - 9 * 24 * HOUR, 1, topic="payments")
    poisons(now - 30 * HOUR, 2, consumer_group="billing")
    dropped, _ = poisons(now - 2 * HOUR, 2, consumer_group="stock")
    drop(now, dropped)

    operation = preview_by_worker(operator, now, query=EVERYTHING)
    breakdown = preview_summaries.summarize(operation=operation).breakdown

    names = {str(topic.pk): topic.name for topic in Topic.objects.all()}
    assert (operation.total, operation.will_act) == (5, 4)
    assert breakdown.skipped.values == (("dropped: restore it first", 1),)
    assert breakdown.topics.renamed(names).values == (("orders", 3), ("payments", 1))
    assert breakdown.consumers.values == (("billing", 3), ("stock", 1))
    assert breakdown.states.values == (("open", 4),)
    assert breakdown.ages.values == (
        ("under a day", 1),
        ("under a week", 2),
        ("a week and more", 1),
    )


def test_counts_of_several_steps_are_those_of_one(
    orders: Topic, operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours in range(7):
        poisons(now - hours * 5 * HOUR, 1, consumer_group=f"group-{hours % 3}")
    drop(now, *Poison.objects.filter(consumer_group="group-1"))
    in_one_step = preview_by_worker(operator, now, query=EVERYTHING)
    monkeypatch.setattr(preview_breakdown_counting, "AT_ONCE", 2)

    in_steps = preview_by_worker(operator, now, query=EVERYTHING)

    assert in_steps.breakdown == in_one_step.breakdown
    assert in_steps.breakdown is not None


def test_the_largest_are_kept_and_the_others_are_added_up(
    orders: Topic, operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown_module, "MOST_KEPT", 2)
    for number, group in ((1, "a"), (3, "b"), (2, "c"), (1, "d")):
        poisons(now, number, consumer_group=group)

    summary = preview_summaries.summarize(operation=preview(operator, now))

    assert summary.breakdown.consumers == Largest(values=(("b", 3), ("c", 2)), others=2)
    assert ItemBreakdown.from_json(summary.breakdown.to_json()) == summary.breakdown


def test_the_samples_of_a_preview_differ(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3, consumer_group="billing")
    (other,) = poisons(now, 1, consumer_group="stock")

    sample = preview_summaries.summarize(operation=preview(operator, now)).sample

    assert len(sample) == 3
    assert other in sample[:2]


def test_a_preview_that_is_being_taken_is_not_waited_for(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    operation = preview(operator, now, at_once=1)

    with pytest.raises(NotTaken), connection.execute_wrapper(no_lock):
        confirm(operator, operation, now)


def no_lock(
    execute: Callable[..., object],
    sql: str,
    params: object,
    many: bool,
    context: object,
) -> object:
    assert "FOR UPDATE" not in sql
    return execute(sql, params, many, context)


def test_the_pages_of_an_operation_never_read_all_of_its_items(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    many, few = 1_500, 3
    reports = [failure(now, consumer_group="billing") for _ in range(many)]
    capture(now, *reports)
    large = preview_by_worker(operator, now, verb=Verb.DROP, query=EVERYTHING)

    pages_of(large, operator, now)  # before that, plans are made
    rows_of_preview = rows_read(lambda: pages_of(large, operator, now))
    confirm(operator, large, now)
    run(large, now)
    small = preview(operator, now, verb=Verb.RESTORE, ids=range(1, 1 + few))
    rows_of_page = rows_read(
        lambda: operation_progress.progress(large.pk, operator, now=now)
    )

    assert small.total == few
    assert rows_of_preview < many / 2
    assert rows_of_page < many / 2


def pages_of(operation: Operation, who: Principal, now: datetime) -> None:
    operation_previews.preview(str(operation.token), who, now=now)


def rows_read(work: Callable[[], object]) -> int:
    """Count the items that Postgres reads for some work."""
    with CaptureQueriesContext(connection) as queries:
        work()
    statements = [each["sql"] for each in queries.captured_queries]
    return sum(map(items_read, statements))


def items_read(statement: str) -> int:
    if not statement.lstrip().startswith("SELECT") or "triage_" not in statement:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}".replace("%", "%%"))
        (plan,) = cursor.fetchone()
    return rows_of(plan[0]["Plan"])


def rows_of(node: dict[str, object]) -> int:
    plans: list[dict[str, object]] = node.get("Plans", [])  # type: ignore[assignment]
    own = 0
    if node.get("Relation Name") == "triage_selected_item":
        rows, loops = node["Actual Rows"], node["Actual Loops"]
        own = round(float(str(rows)) * float(str(loops)))
    return own + sum(map(rows_of, plans))


def test_what_can_be_undone_is_what_was_dropped_and_is_still(
    orders: Topic, operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_five = poisons(now, 5)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    before = undoable(dropping, operator, now)
    run(dropping, now)
    at_first = undoable(dropping, operator, now)
    restore(operator, now, ids=(all_five[0].pk,))
    one_by_hand = undoable(dropping, operator, now)
    monkeypatch.setattr(operation_progress, "MOST_LOOKED_UP", 4)
    too_many = undoable(dropping, operator, now)
    monkeypatch.undo()
    restore(operator, now, dropped_by=dropping.pk)

    assert (before, at_first, one_by_hand) == (0, 5, 4)
    assert isinstance(too_many, TooSlow)
    assert undoable(dropping, operator, now) == 0


def test_what_an_undo_restored_cannot_be_undone_again(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    run(dropping, now)
    undo = confirm(
        operator, preview(operator, now, verb=Verb.RESTORE, dropped_by=dropping.pk), now
    )
    run(undo, now)
    undone = undoable(dropping, operator, now)

    later = now + HOUR
    again = confirm(
        operator, preview(operator, later, verb=Verb.DROP, query=EVERYTHING), later
    )
    run(again, later)

    # An undo of the first drop would restore what the second one has dropped.
    assert (undone, undoable(dropping, operator, later)) == (0, 3)


def test_what_others_restore_while_an_undo_is_at_work_counts_too(
    orders: Topic, operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = poisons(now, 3)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    run(dropping, now)
    monkeypatch.setattr(confirm_and_undo, "JUDGED_AT_ONCE", 0)
    undo = preview(operator, now, verb=Verb.RESTORE, dropped_by=dropping.pk)
    confirm(operator, undo, now)

    restore(operator, now + HOUR, ids=(first.pk,))

    assert undoable(dropping, operator, now) == 2


def undoable(operation: Operation, who: Principal, now: datetime) -> int | TooSlow:
    return operation_progress.progress(operation.pk, who, now=now).undoable


def restore(who: Principal, now: datetime, **selection: Any) -> None:
    run(confirm(who, preview(who, now, verb=Verb.RESTORE, **selection), now), now)


def test_pages_of_items_of_a_standing_are_the_whole_list_cut(
    orders: Topic, operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture(now, *(failure(now) for _ in range(40)))
    drop(now, *Poison.objects.filter(pk__in=range(5, 30, 3)))
    first = in_small_windows(operator, now)
    run(first, now, most=3)
    capture(now, *(failure(now) for _ in range(12)))
    second = in_small_windows(operator, now)
    run(second, now, by=AwayPublisher)
    capture(now, *(failure(now) for _ in range(9)))
    monkeypatch.setattr(confirm_and_undo, "JUDGED_AT_ONCE", 0)
    ids = [poison.pk for poison in Poison.objects.order_by("-pk")[:9]]
    unjudged = confirm(operator, preview(operator, now, ids=ids), now)

    for each in (first, second, unjudged):
        counts = counts_of(each)
        everything = standings_of(each, limit=100)
        assert [item.number for item in everything] == list(range(each.total))
        for standing in STANDINGS:
            expected = [item for item in everything if item.standing == standing]
            assert len(expected) == counts.get(standing, 0)
            for limit in (1, 3, 8):
                assert paged(each, standing, limit) == expected


def in_small_windows(who: Principal, now: datetime) -> Operation:
    operation = preview(who, now)
    Operation.objects.filter(pk=operation.pk).update(window_size=7)
    return confirm(who, operation, now)


def paged(operation: Operation, standing: str, limit: int) -> list[object]:
    after, items = -1, list[object]()
    while rows := standings_of(
        operation, standings=[standing], after=after, limit=limit
    ):
        items += rows
        after = rows[-1].number
    return items
