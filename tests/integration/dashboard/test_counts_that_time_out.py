"""Pages and API calls when Postgres takes too long for a count.

Pages come from the URL configuration, and figures from what each page asks for: a new
one is in these tests by itself. Postgres is slow for real: it sleeps, and gives up.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from operator import eq
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, models, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import get_resolver
from django.urls.resolvers import URLResolver
from redis import Redis

from apps.bookmarks.models import BookmarkPosition, Mark
from apps.brokers.models import Broker, Topic
from apps.core.statement_timeouts import unless_slow
from apps.dashboard.presentation.counts_as_text import took_too_long
from apps.outbox.models import Outbox
from apps.poison.models import Poison, Problem, Skip
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.services.request_acceptance import accept
from apps.team.models import ApiKey, User
from apps.team.rights import Principal
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from tests import published_reports
from tests.failure_report_builders import capture, count_up, counter, failure, poisons
from tests.integration.outbox.conftest import broker_address, outbox, outbox_database
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.redelivery import endpoint_and_delivery_builders as redelivery
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.skip_builders_and_list_mirror import added
from tests.triage_operation_runner import confirm, preview, run

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["broker_address", "outbox", "outbox_database"]

APPS = Path(__file__).resolve().parents[3] / "apps"
HINT = str(took_too_long())
ALL = "all"
# What the numbers in addresses are of. An address with another one has to be added.
OBJECTS: dict[str, type[models.Model]] = {
    "broker_id": Broker,
    "delivery_id": Delivery,
    "endpoint_id": Endpoint,
    "outbox_id": Outbox,
    "row_id": Outbox,  # in another database: any number will do
    "key_id": ApiKey,
    "message_id": Poison,
    "operation_id": Operation,
    "poison_id": Poison,
    "position_id": BookmarkPosition,
    "problem_id": Problem,
    "skip_id": Skip,
    "topic_id": Topic,
    "user_id": User,
}
# The stream never ends, and counts nothing.
STREAM = "/api/v1/skips/stream"
NOT_THERE = 10**6
# Counts when a preview is made; its page shows what was stored.
NOT_BY_PAGES = {"triage/services/preview_breakdown_counting.py"}


@dataclass(kw_only=True)
class SlowFigures:
    """Makes Postgres slow for the figures that are chosen, by their turn in a request.

    A sleep replaces the first statement of such a figure, under its own time-out; the
    error is Postgres's own.
    """

    is_slow: Callable[[int], bool]
    places: list[tuple[str, int]] = field(default_factory=list)
    missing: list[tuple[str, int]] = field(default_factory=list)
    figure: FrameType | None = None

    def __call__(
        self,
        execute: Callable[..., Any],
        sql: str,
        params: Any,
        many: bool,
        context: dict[str, Any],
    ) -> Any:
        figure = figure_in_progress()
        # In a test's transaction it begins with a savepoint: what is asked follows.
        if figure is not self.figure and not sql.startswith("SAVEPOINT"):
            self.figure = figure
            if figure is not None and self._begins_slowly(asked_at(figure)):
                sleep = "SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)"
                execute(sleep, None, False, context)
        return execute(sql, params, many, context)

    def _begins_slowly(self, place: tuple[str, int]) -> bool:
        """Note where a figure is asked for; tell whether it is to be slow."""
        is_slow = self.is_slow(len(self.places))
        self.places.append(place)
        if is_slow:
            self.missing.append(place)
        return is_slow


def figure_in_progress() -> FrameType | None:
    """Return the call that requests a count, if one does."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not unless_slow.__code__:
        frame = frame.f_back
    return frame


def asked_at(figure: FrameType) -> tuple[str, int]:
    """Return the file and line that requests a count."""
    caller = figure.f_back
    assert caller is not None
    return str(Path(caller.f_code.co_filename).relative_to(APPS)), caller.f_lineno


@contextmanager
def slow(is_slow: Callable[[int], bool]) -> Iterator[SlowFigures]:
    figures = SlowFigures(is_slow=is_slow)
    with connection.execute_wrapper(figures):
        yield figures


def addresses(resolver: URLResolver, before: str = "/") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        path = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from addresses(pattern, path)
        elif "?P<" not in path:
            yield re.sub(r"<\w+:(\w+)>", lambda match: str(id_of(match[1])), path)


def id_of(argument: str) -> int | UUID:
    newest = OBJECTS[argument]._default_manager.order_by("-pk")
    if argument == "operation_id":
        newest = newest.exclude(confirmed_at=None)
    absent = UUID(int=NOT_THERE) if argument == "delivery_id" else NOT_THERE
    return newest.values_list("pk", flat=True).first() or absent


def pages() -> list[str]:
    paths = [path for path in addresses(get_resolver()) if path != STREAM]
    assert len(paths) > 60
    tokens = Operation.objects.previews().values_list("token", flat=True)
    previews = ("/operations/preview", "/api/v1/operations/preview")
    # What an operation shows depends on its verb.
    by_verb = Operation.objects.confirmed().order_by("verb", "-pk").distinct("verb")
    return [
        *paths,
        *(f"/operations/{pk}" for pk in by_verb.values_list("pk", flat=True)),
        *(f"{path}?token={token}" for path in previews for token in tokens),
    ]


def is_page(answer: Any) -> bool:
    return bool(answer.status_code == 200 and "text/html" in answer["Content-Type"])


def shows_a_missing_figure(answer: Any) -> bool:
    """Check for the dash and its hint; a title has only the dash."""
    text = answer.content.decode()
    return HINT in text or "<title>(—) " in text


@pytest.fixture
def delivery(db: None, now: datetime) -> None:
    """Store a request to an endpoint, whose topic is older than that of others."""
    failed = redelivery.request(redelivery.BROKEN)
    accept(endpoint=redelivery.endpoint(), new=failed, now=now)


@pytest.fixture
def registered_outbox(
    db: None, broker: object, broker_address: None, outbox: OutboxTables
) -> None:
    outbox_at(outbox.dsn)


@pytest.fixture
def lived_in(
    ada: Client,
    delivery: None,
    registered_outbox: None,
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
) -> None:
    """Return an installation with data for every page."""
    count_up(now, counter(minute=(now - timedelta(minutes=5)).isoformat()))
    waiting = poisons(now, 3)
    run(confirm(operator, preview(operator, now, ids=[waiting[0].pk]), now), now)
    # The page of a drop looks at its messages where others have restored some.
    for verb, message in (
        (Verb.DROP, waiting[1]),
        (Verb.RESTORE, waiting[1]),
        (Verb.DROP, waiting[2]),
    ):
        decision = preview(operator, now, verb=verb, ids=[message.pk])
        run(confirm(operator, decision, now), now)
    for verb in (Verb.REDRIVE, Verb.DROP):
        data = {"verb": verb, "q": "is:open", "everything": "1"}
        ada.post("/operations/preview", data)
    added(now, "1-0", topic=orders)
    position = BookmarkPosition.objects.create(
        topic=orders,
        source="broker",
        consumer_group="billing",
        observed_at=now,
        moved_at=now,
    )
    Mark.objects.create(position=position, processed=1, head=9, lag=8)
    yesterday = now.date() - timedelta(days=1)
    published_reports.publish(yesterday)
    published_reports.rate(yesterday, 10, 1)
    add_new_and_old_problems(operator, now)


def add_new_and_old_problems(operator: Principal, now: datetime) -> None:
    """Age the problems by five hours, and capture a message of a new one."""
    Problem.objects.update(first_seen=now - timedelta(hours=5))
    poisons(now, 1, exception={"type": "New", "message": "", "traceback": ""})


@pytest.fixture
def without_lane(now: datetime) -> None:
    """Return a topic that is only known from a report: without lane and traffic."""
    capture(now, failure(now))


@pytest.fixture
def empty(db: None) -> None:
    assert not Topic.objects.exists()


@pytest.mark.parametrize("state", ["lived_in", "without_lane", "empty"])
@pytest.mark.parametrize("htmx", [False, True])
def test_every_page_is_shown_when_all_counts_time_out(
    ada: Client, request: pytest.FixtureRequest, state: str, htmx: bool
) -> None:
    request.getfixturevalue(state)
    headers = {"HX-Request": "true"} if htmx else {}

    for path in pages():
        usual = ada.get(path, headers=headers)
        with slow(lambda _: True) as figures:
            answer = ada.get(path, headers=headers)

        assert answer.status_code == usual.status_code < 500, path
        if state == "lived_in" and figures.missing and is_page(answer):
            assert shows_a_missing_figure(answer), path


def test_each_count_of_the_product_that_timed_out_is_marked_on_its_page(
    ada: Client, lived_in: None
) -> None:
    checked_count, counted = 0, set[tuple[str, int]]()
    for path in pages():
        with slow(lambda _: False) as figures:
            usual = ada.get(path)
        assert not (is_page(usual) and shows_a_missing_figure(usual))
        counted |= {*figures.places}
        for turn, place in enumerate(figures.places):
            with slow(partial(eq, turn)) as one:
                answer = ada.get(path)

            assert answer.status_code == usual.status_code, (path, place)
            if one.missing and is_page(answer):
                checked_count += 1
                assert shows_a_missing_figure(answer), (path, place)
    assert checked_count > 15
    # Every count that the product asks for was one of them.
    assert [call for call in calls() if not is_counted(call, counted)] == []


def is_counted(call: tuple[str, int, int], counted: Set[tuple[str, int]]) -> bool:
    """Tell whether a page asked for this count, or pages need not."""
    where, first, last = call
    if where in NOT_BY_PAGES:
        return True
    return any(file == where and first <= line <= last for file, line in counted)


def calls() -> Iterator[tuple[str, int, int]]:
    """Find the calls that request counts: file and lines."""
    for file in sorted(APPS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "unless_slow":
                where = str(file.relative_to(APPS))
                yield where, node.lineno, node.end_lineno or node.lineno


def test_a_list_that_was_not_counted_is_a_list(ada: Client, lived_in: None) -> None:
    with slow(lambda _: True):
        page = ada.get("/messages?q=is:open").content.decode()

    assert f"{HINT} messages" in page
    assert page.count("data-key=") >= 3


def limit_in_force() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        (limit,) = cursor.fetchone()
    return str(limit)


def test_the_limit_of_a_figure_costs_no_statement_of_its_own() -> None:
    with CaptureQueriesContext(connection) as queries:
        limits = [unless_slow(limit_in_force, within_ms=7_000) for _ in range(2)]

    assert (limits, len(queries)) == (["7s", "7s"], 2)
    assert limit_in_force() == "0"


def test_the_limit_of_a_figure_in_a_transaction_ends_with_the_figure() -> None:
    with transaction.atomic():
        limit = unless_slow(limit_in_force, within_ms=7_000)

        assert (limit, limit_in_force()) == ("7s", "0")
