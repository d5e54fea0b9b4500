"""Topics are looked up by name first: then each query reads the rows of its topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from apps.brokers.models import Topic
from apps.core import keyset
from apps.core.actor import Actor
from apps.dashboard.selectors import overview
from apps.poison import problem_search
from apps.poison.models import Poison, Problem
from apps.poison.query_language import Query
from apps.team.rights import Principal, Scope
from apps.triage.services import preview_summaries, previews
from tests.failure_report_builders import poisons
from tests.races import on_another_connection
from tests.triage_operation_runner import preview

pytestmark = pytest.mark.django_db

LARGE, SMALL, NONE = "topic:large", "topic:small*", "topic:nowhere*"
PAGE = 50
# A page of fifty, and what else it takes to find them; of the large topic there are
# eight thousand.
MOST_READ = 300
FILL = """
WITH topic AS (
    INSERT INTO brokers_topic (name, native_name, dead_letter_queue,
                               max_dequeue_count, visibility_timeout)
    VALUES (%(topic)s, %(topic)s, '', 5, 30) RETURNING id
), problem AS (
    INSERT INTO poison_problem (topic_id, consumer_group, fingerprint, version, title,
                                summary, inputs, first_seen, last_seen)
    SELECT topic.id, 'billing', sha256(n::text::bytea), 1, 'Error', 'broken', '{}',
           %(at)s, %(at)s
    FROM topic, generate_series(1, %(problems)s) AS n RETURNING id, topic_id
)
INSERT INTO poison_poison (identity, reuse, topic_id, consumer_group, bookmark,
    problem_id, state, cause, error_type, error_message, size, digest, failures,
    attempts, crashes, redrives, recurrences, first_failed_at, last_failed_at,
    captured_at)
SELECT sha256((%(topic)s || problem.id || '/' || n)::bytea), 0, problem.topic_id,
       'billing', n::text::bytea, problem.id, 'open', 'exhausted', 'Error', 'broken', 2,
       'digest', 1, 1, 0, 0, 0, %(at)s, %(at)s + n * interval '1 second', %(at)s
FROM problem, generate_series(1, %(each)s) AS n
"""


def fill(topic: str, *, problems: int, each: int, at: datetime) -> None:
    values: dict[str, str | int | datetime] = {"topic": topic, "at": at}
    values |= {"problems": problems, "each": each}
    with connection.cursor() as cursor:
        cursor.execute(FILL, values)


@pytest.fixture
def two_topics(db: None, now: datetime) -> None:
    """Give a large topic that fails now, and a small one that failed long ago."""
    fill("large", problems=40, each=200, at=now - timedelta(hours=1))
    fill("small.1", problems=2, each=10, at=now - timedelta(days=20))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE poison_poison, poison_problem, brokers_topic")


def operator_of(*topics: str) -> Principal:
    return Principal(
        actor=Actor.key("scoped"), scopes=frozenset(Scope), topics=topics or ("*",)
    )


def messages(query: str, *topics: str) -> QuerySet[Any]:
    matches = Poison.objects.on_topics(topics or ("*",)).matching(Query.parse(query))
    return matches.recent_first()


def problems_of(query: str, *topics: str) -> QuerySet[Any]:
    matches = problem_search.matching(Query.parse(query), topics=topics or ("*",))
    return matches.recent_first()


# How to find, what, on which topics; and how many the first page has.
LISTS: dict[tuple[Callable[..., QuerySet[Any]], str, tuple[str, ...]], int] = {
    (messages, LARGE, ()): PAGE,
    (messages, SMALL, ()): 20,
    (messages, SMALL + " is:open", ()): 20,
    (messages, "is:open", ("small.*",)): 20,
    (messages, "is:open", ("large", "small.*")): PAGE,
    (problems_of, LARGE, ()): 40,
    (problems_of, SMALL, ()): 2,
    (problems_of, "is:open", ("small.*",)): 2,
    (problems_of, "", ("large",)): 40,
    (problems_of, "!" + LARGE, ()): 2,
}


def test_a_list_of_a_topic_reads_hardly_more_rows_than_it_shows(
    two_topics: None,
) -> None:
    numbers, reads = {}, {}
    for find, query, topics in LISTS:
        case, before = (find, query, topics), rows_read()
        numbers[case] = len(find(query, *topics)[:PAGE])
        reads[case] = rows_read() - before

    assert numbers == LISTS
    assert {case: rows for case, rows in reads.items() if rows > MOST_READ} == {}


def test_a_deep_page_reads_hardly_more_rows_than_it_shows(two_topics: None) -> None:
    numbers, reads = {}, {}
    for query, backwards in product(("", LARGE), (False, True)):
        rows = messages(query)
        middle = rows[4_000]
        case, before = (query, backwards), rows_read()
        part = keyset.read(
            rows, PAGE, key=[middle.last_failed_at, middle.pk], backwards=backwards
        )
        numbers[case] = len(part.rows)
        reads[case] = rows_read() - before

    assert numbers == dict.fromkeys(numbers, PAGE)
    assert {case: rows for case, rows in reads.items() if rows > MOST_READ} == {}


def rows_read() -> int:
    """Count the poisons that this transaction has read so far, by index or without."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
            " WHERE relname = 'poison_poison'"
        )
        return int(cursor.fetchone()[0])


def test_messages_of_one_topic_come_from_the_index_of_topics(two_topics: None) -> None:
    queries = (LARGE, "topic:small.1", LARGE + " cause:exhausted")
    plans = {query: messages(query)[:PAGE].explain() for query in queries}

    assert {
        query: plan for query, plan in plans.items() if "poison_by_topic" not in plan
    } == {}


@pytest.mark.parametrize("find", [messages, problems_of])
@pytest.mark.parametrize(("query", "topics"), [(NONE, ()), ("", ("nowhere", "no*"))])
def test_where_no_topic_has_the_name_no_message_is_looked_at(
    find: Callable[..., QuerySet[Any]],
    query: str,
    topics: tuple[str, ...],
    now: datetime,
) -> None:
    poisons(now, 1)

    with CaptureQueriesContext(connection) as queries:
        results = [*find(query, *topics)[:PAGE], find(query, *topics).count()]

    assert results == [0]
    assert not any("poison_poison" in each["sql"] for each in queries.captured_queries)


def test_a_query_is_read_without_asking_postgres() -> None:
    with CaptureQueriesContext(connection) as queries:
        Query.parse("topic:orders* !topic:orders.eu consumer:billing is:open")

    assert len(queries) == 0


def test_a_star_and_a_percent_sign_in_a_name_are_not_mixed_up(now: datetime) -> None:
    for topic in ("orders", "orders.eu", "100%", "100 %"):
        poisons(now, 1, topic=topic)

    counts = {
        query: [poison.topic.name for poison in messages(query).order_by("topic__name")]
        for query in ("topic:orders*", "topic:orders", "topic:100%", "!topic:o*")
    }

    assert counts == {
        "topic:orders*": ["orders", "orders.eu"],
        "topic:orders": ["orders"],
        "topic:100%": ["100%"],
        "!topic:o*": ["100 %", "100%"],
    }


def test_an_overview_for_no_topic_at_all_is_empty(now: datetime) -> None:
    poisons(now, 1)

    page = overview.find(None, operator_of("nowhere"), now=now)

    assert (page.needs.rows, page.topics) == ([], [])


def test_a_preview_that_no_topic_matches_holds_nothing(now: datetime) -> None:
    poisons(now, 2)

    operation = preview(operator_of(), now, query=Query.parse(NONE))

    assert (operation.taken, operation.total) == (True, 0)


def test_a_problem_is_listed_under_its_own_topic_wherever_its_messages_came_from(
    now: datetime,
) -> None:
    (sent_on,) = poisons(now, 1, topic="payments")
    (problem,) = Problem.objects.all()
    elsewhere = Topic.objects.create(name="orders", native_name="orders")
    Problem.objects.filter(pk=problem.pk).update(topic=elsewhere)

    assert sent_on.problem_id == problem.pk
    assert list(problems_of("topic:orders is:open")) == [problem]
    assert list(problems_of("is:open", "orders")) == [problem]
    assert list(problems_of("topic:payments")) == []


@pytest.mark.django_db(transaction=True)
def test_a_large_selection_is_frozen_before_its_topics_are_looked_up_again(
    now: datetime,
) -> None:
    expected = poisons(now, 2, topic="orders.eu")
    operation = preview(
        operator_of("orders.*"), now, query=Query.parse("topic:orders*"), at_once=1
    )
    poisons(now, 1, topic="orders.us")

    previews.take(operation_id=operation.pk, now=now)

    selected = set(operation.items.values_list("poison_id", flat=True))
    assert not operation.taken  # at once
    assert selected == {poison.pk for poison in expected}
    assert preview_summaries.summarize(operation=operation).newer == 1


@pytest.mark.django_db(transaction=True)
def test_a_topic_that_appears_just_before_the_snapshot_is_in_the_selection(
    now: datetime,
) -> None:
    """Its message is either taken or told as newer; here it came before the moment."""
    poisons(now, 1, topic="orders.eu")

    def fail() -> None:
        poisons(now, 1, topic="orders.us")

    with just_before_the_snapshot(fail):
        operation = preview(operator_of(), now, query=Query.parse("topic:orders*"))

    assert (
        operation.total,
        preview_summaries.summarize(operation=operation).newer,
    ) == (2, 0)


@contextmanager
def just_before_the_snapshot(act: Callable[[], None]) -> Iterator[None]:
    """Let another session act when a preview is about to be written down."""
    done: list[object] = []

    def watch(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        if 'INSERT INTO "triage_operation"' in sql and not done:
            done.append(sql)
            on_another_connection(act)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        yield
    assert done
