"""The sample's history in Postgres, after a kill in the middle of making it.

A fixture makes the history once; each test checks one of its results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import DjangoDbBlocker

from apps.audit import verification
from apps.audit.verification import ChainVerdict
from apps.core import advisory_locks, clock
from apps.reports import spark_job_process
from apps.reports.models import Run
from apps.reports.services.report_requests import newest_over
from poisonweb.management.commands import make_history
from poisonweb.sample.history import writer
from poisonweb.sample.history.traffic_calendar import DAY, DAYS, Weeks
from tests.conftest import NOON, wipe
from tests.registered_brokers import sample_broker
from tests.waiting import await_start

MANAGE = (sys.executable, "manage.py", "make_history")
SUMMED = (
    *("delivered", "failed", "poisoned", "skipped", "retried"),
    *("redriven", "confirmed", "recurred", "dropped"),
)
Place = tuple[str, int, str, str]

Numbers = dict[Place, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class HistoryResults:
    """The results after the kill, after the end, and after another start.

    `newest` are the possible newest days of the first start.
    """

    newest: set[date]
    killed_after: set[date]
    weeks: Weeks
    contents: dict[str, tuple[int, str]]
    contents_later: dict[str, tuple[int, str]]
    ledger: Numbers
    record: Numbers
    states: dict[tuple[str, str], int]
    unfinished: int
    decided_by: set[tuple[str, str]]
    requested: list[tuple[date, date]]
    verdict: ChainVerdict


@pytest.fixture(scope="module")
def story(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> HistoryResults:
    var = tmp_path_factory.mktemp("var")
    with django_db_blocker.unblock():
        sample_broker(NOON)
        try:
            return tell(var)
        finally:
            # The next tests of this file may expect an empty database.
            wipe()


def tell(var: Path) -> HistoryResults:
    before = newest_over(clock.now())
    killed_after = kill_in_the_middle(var)
    newest = {before, newest_over(clock.now())}
    run_to_the_end(var)
    weeks = Weeks(first=min(writer.written_days()))
    contents_after_start = contents()
    make_history.make(newest=weeks.last + 9 * DAY, ledger=var / "sample-history.jsonl")
    run_to_the_end(var)
    return HistoryResults(
        newest=newest,
        killed_after=killed_after,
        weeks=weeks,
        contents=contents_after_start,
        contents_later=contents(),
        ledger=ledger(var / "sample-history.jsonl"),
        record=record(),
        states=states(),
        unfinished=count("SELECT count(*) FROM poison_hold"),
        decided_by=set(rows("SELECT actor, source FROM triage_operation")),
        requested=list(Run.objects.values_list("first_day", "last_day")),
        verdict=verification.verify(),
    )


def started(var: Path) -> subprocess.Popen[bytes]:
    changes = {
        "DATABASE_URL": spark_job_process.database_url(),
        "POISONWEB_VAR": str(var),
    }
    return subprocess.Popen(MANAGE, env={**os.environ, **changes})


def kill_in_the_middle(var: Path) -> set[date]:
    with started(var) as process:
        await_start(process, lambda: len(writer.written_days()) >= 4)
        process.kill()
    return writer.written_days()


def run_to_the_end(var: Path) -> None:
    with started(var) as process:
        assert process.wait(600) == 0


def rows(query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def count(query: str) -> int:
    return int(rows(query)[0][0])


def contents() -> dict[str, tuple[int, str]]:
    """Return the number of rows of each table, and their digest."""
    query = "SELECT count(*), md5(string_agg(t::text, '' ORDER BY t::text)) FROM {} t"
    tables = connection.introspection.table_names()
    return {name: rows(query.format(name))[0] for name in tables}


def states() -> dict[tuple[str, str], int]:
    rows_found = rows(
        "SELECT topic.name, state, count(*) FROM poison_poison poison"
        " JOIN brokers_topic topic ON topic.id = topic_id GROUP BY 1, 2"
    )
    return {(topic, state): number for topic, state, number in rows_found}


def ledger(path: Path) -> Numbers:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        (line["day"], line["hour"], line["topic"], line["consumer_group"]): {
            name: line[name] for name in SUMMED if line[name]
        }
        for line in lines
        if "hour" in line
    }


# Each gives (moment, topic, consumer group, what, number); the day is that of UTC.
FACTS = (
    "SELECT minute, topic_id, consumer_group, 'delivered', handled + failed"
    " FROM capture_counter",
    "SELECT minute, topic_id, consumer_group, 'skipped', skipped FROM capture_counter",
    "SELECT minute, topic_id, consumer_group, 'retried', retried FROM capture_counter",
    "SELECT f.failed_at, topic_id, consumer_group, 'failed', 1"
    " FROM poison_failure f JOIN poison_poison p ON p.id = f.poison_id",
    "SELECT f.failed_at, topic_id, consumer_group, 'poisoned', f.is_first::int"
    " FROM poison_failure f JOIN poison_poison p ON p.id = f.poison_id",
    "SELECT r.sent_at, p.topic_id, consumer_group, 'redriven', 1"
    " FROM poison_redrive r JOIN poison_poison p ON p.id = r.poison_id",
    "SELECT r.confirmed_at, p.topic_id, consumer_group, 'confirmed', 1"
    " FROM poison_redrive r JOIN poison_poison p ON p.id = r.poison_id",
    "SELECT r.answered_at, p.topic_id, consumer_group, 'recurred', 1"
    " FROM poison_redrive r JOIN poison_poison p ON p.id = r.poison_id"
    " WHERE outcome = 'recurred'",
    "SELECT p.dropped_at, topic_id, consumer_group, 'dropped', 1 FROM poison_poison p",
)


def record() -> Numbers:
    """Sum the facts in Postgres by hour."""
    rows_found = rows(
        "SELECT (at AT TIME ZONE 'UTC')::date::text,"
        " extract(hour FROM at AT TIME ZONE 'UTC')::int,"
        " topic.name, consumer_group, what, sum(number)::int"
        f" FROM ({' UNION ALL '.join(FACTS)}) AS"
        " fact(at, topic_id, consumer_group, what, number)"
        " JOIN brokers_topic topic ON topic.id = topic_id"
        " WHERE at IS NOT NULL AND number > 0 GROUP BY 1, 2, 3, 4, 5"
    )
    numbers: Numbers = {}
    for day, hour, topic, consumer_group, what, number in rows_found:
        numbers.setdefault((day, hour, topic, consumer_group), {})[what] = number
    return numbers


def test_a_killed_history_has_whole_days_and_the_next_start_continues(
    story: HistoryResults,
) -> None:
    weeks = sorted(story.weeks)

    assert 4 <= len(story.killed_after) < DAYS
    assert sorted(story.killed_after) == weeks[: len(story.killed_after)]
    assert story.weeks.last in story.newest


def test_starting_again_on_another_day_changes_nothing(story: HistoryResults) -> None:
    assert story.contents_later == story.contents


def test_the_record_agrees_with_the_ledger_hour_by_hour(story: HistoryResults) -> None:
    assert len(story.record) > 1_500
    assert story.record == {
        place: counts for place, counts in story.ledger.items() if counts
    }


def test_almost_no_message_is_left_open(story: HistoryResults) -> None:
    total: Counter[str] = Counter()
    for (_, state), number in story.states.items():
        total[state] += number

    assert set(total) <= {"open", "confirmed", "dropped"}
    assert total["open"] <= 15
    assert {topic for topic, state in story.states if state == "open"} <= {"shipments"}
    assert min(total["confirmed"], total["dropped"]) > 1_000
    assert story.unfinished == 0


def test_decisions_are_audited_with_the_sample_as_their_actor(
    story: HistoryResults,
) -> None:
    assert story.decided_by == {("system:sample", "system")}
    assert story.verdict.ok
    operations, _ = story.contents["triage_operation"]
    # Two entries for broker and report, and two for each operation.
    assert story.verdict.entries == 2 + 2 * operations


def test_the_report_of_its_days_is_requested_once(story: HistoryResults) -> None:
    assert story.requested == [(story.weeks.first, story.weeks.last)]


@pytest.mark.django_db(transaction=True)
def test_without_a_sample_there_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="POISONWEB_DEMO=1"):
        make_history.make(newest=NOON.date(), ledger=tmp_path / "ledger")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.django_db(transaction=True)
def test_making_history_is_refused_while_another_process_makes_it(
    tmp_path: Path,
) -> None:
    sample_broker(NOON)

    with (
        advisory_locks.attempt("sample history"),
        pytest.raises(CommandError, match="another process"),
    ):
        call_command("make_history")

    assert writer.written_days() == set()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("minute", "newest"), [(4, date(2026, 11, 18)), (5, date(2026, 11, 19))]
)
def test_its_days_can_be_reported_at_once_even_right_after_midnight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minute: int, newest: date
) -> None:
    sample_broker(NOON)
    now = datetime(2026, 11, 20, 0, minute, tzinfo=UTC)
    # Writing the days takes half a minute, and this test does not need them.
    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(writer, "write", lambda *_, **__: None)
    weeks = make_history.make(newest=newest_over(now), ledger=tmp_path / "ledger")

    make_history.ask_for_report(weeks, wait_limit=timedelta(0))

    assert weeks.last == newest
    assert Run.objects.get().last_day == newest


def making(day: date) -> Run:
    return Run.objects.create(
        first_day=day, last_day=day, asked_by="user:anna", asked_at=NOON
    )


@pytest.mark.django_db(transaction=True)
def test_history_waits_for_another_run_over_its_days() -> None:
    weeks = Weeks(first=clock.now().date() - 2 * DAYS * DAY)
    other = Run.objects.filter(pk=making(weeks.last).pk)
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            other.update(state="failed", trouble="no Java", finished_at=NOON)

    make_history.ask_for_report(weeks, sleep=pause)

    assert pauses == [make_history.POLL_SECONDS] * 2
    assert Run.objects.unfinished().get().asked_by == "system:sample"


@pytest.mark.django_db(transaction=True)
def test_waiting_for_the_report_ends_at_the_time_out() -> None:
    weeks = Weeks(first=clock.now().date() - 2 * DAYS * DAY)
    making(weeks.last)

    with pytest.raises(CommandError, match="no report of the history yet"):
        make_history.ask_for_report(weeks, wait_limit=timedelta(0))

    assert Run.objects.count() == 1
