"""The overview tells what changed, what goes on and what is not well, and no more."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import OperationalError, connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane
from apps.core.actor import Actor
from apps.core.hurry import unless_slow
from apps.dashboard.context import shell
from apps.dashboard.selectors import overview
from apps.poison.models import Poison
from apps.reports.models import Day, Run
from apps.team.rights import Principal, Scope
from apps.triage.models import Operation, WorkerBeat
from tests.integration.dashboard.conftest import SignIn
from tests.reports import drop, poisons

pytestmark = pytest.mark.django_db

HOSTILE_TEXT = "</a><script>alert(1)</script>\u202e\x00" + "A" * 500


def get(client: Client) -> str:
    response = client.get("/")
    assert response.status_code == 200
    return response.content.decode()


def broken(kind: str) -> dict[str, str]:
    return {"type": kind, "message": "it broke", "traceback": ""}


def limited(*topics: str) -> Principal:
    return Principal(actor=Actor.key("ci"), scopes=frozenset(Scope), topics=topics)


def asked(now: datetime, **changes: object) -> Run:
    run = {
        "first_day": now.date() - timedelta(days=1),
        "last_day": now.date() - timedelta(days=1),
        "asked_by": "system:nightly",
        "asked_at": now,
        "snapshot": "1:1:",
        "as_of": now,
    }
    return Run.objects.create(**{**run, **changes})


def reported(now: datetime, *, made: datetime) -> Day:
    run = asked(now, state="done", started_at=made, finished_at=made)
    return Day.objects.create(day=run.last_day, run=run, rows_in=1, late_rows=0)


def test_an_installation_without_a_message_says_how_to_send_the_first(
    anna: Client,
) -> None:
    page = get(anna)

    assert "No message yet" in page
    assert 'href="/help#first"' in page


def test_nothing_open_is_all_clear(anna: Client, now: datetime) -> None:
    drop(now, *poisons(now - timedelta(hours=3), 1))

    page = get(anna)

    assert "All clear: 0 open" in page
    assert ">3h ago</time>" in page


def test_the_first_visit_tells_of_a_day(anna: Client, now: datetime) -> None:
    poisons(now - timedelta(hours=23), 1, exception=broken("Young"))
    poisons(now - timedelta(hours=25), 1, exception=broken("Elderly"))

    page = get(anna)

    assert "in the last 24 hours" in page
    assert "Young" in page
    assert "Elderly" not in page


def test_a_later_visit_tells_of_what_came_since_the_one_before(
    anna: Client, now: datetime
) -> None:
    poisons(now - timedelta(hours=5), 1, exception=broken("Before"))
    poisons(now - timedelta(hours=1), 1, exception=broken("Since"))
    session = anna.session
    session["visit"] = [(now - timedelta(hours=2)).isoformat(), None]
    session.save()

    page = get(anna)

    assert "since you were last here" in page
    assert "Since" in page
    assert "Before" not in page


def test_a_page_that_refreshes_itself_is_no_visit(anna: Client, now: datetime) -> None:
    away = (now - timedelta(hours=2)).isoformat()
    session = anna.session
    session["visit"] = [away, None]
    session.save()

    anna.get("/", headers={"hx-request": "true"})

    assert anna.session["visit"] == [away, None]


def test_what_came_back_is_told_by_problem(anna: Client, now: datetime) -> None:
    back, quiet = poisons(now, 2)
    Poison.objects.filter(pk=back.pk).update(redrives=2, recurrences=1)

    found = overview.changes(now - timedelta(hours=1), limited("*"), now=now)

    assert found.came_back
    assert [(c.problem.pk, c.number) for c in found.came_back] == [
        (quiet.problem_id, 1)
    ]
    assert "Came back after a requeue" in get(anna)


def test_what_grows_is_measured_against_the_day_before(now: datetime) -> None:
    for hours in range(2, 24):
        poisons(now - timedelta(hours=hours), 2, exception=broken("Steady"))
    poisons(now - timedelta(minutes=5), 2, exception=broken("Steady"))
    poisons(now - timedelta(hours=20), 1, exception=broken("Sudden"))
    poisons(now - timedelta(minutes=5), 9, exception=broken("Sudden"))

    found = overview.changes(now - timedelta(days=1), limited("*"), now=now)

    assert found.growing
    assert [(c.problem.title, c.number) for c in found.growing] == [("Sudden", 9)]
    assert found.growing[0].usual == pytest.approx(1 / 24)


def test_somebody_sees_only_what_is_on_their_topics(now: datetime) -> None:
    for topic in ("orders.eu", "secret"):
        poisons(now - timedelta(hours=2), 1, topic=topic, exception=broken(topic))
        made = poisons(now, 5, topic=topic, exception=broken(topic))
        Poison.objects.filter(pk=made[0].pk).update(redrives=1, recurrences=1)

    found = overview.find(None, limited("orders.*"), now=now)

    problems = [
        *(found.changes.new or []),
        *(change.problem for change in found.changes.came_back or []),
        *(change.problem for change in found.changes.growing or []),
    ]
    assert [problem.topic.name for problem in problems] == ["orders.eu"] * 3
    assert [row.topic.name for row in found.topics] == ["orders.eu"]
    assert found.open.number == 6


def test_operations_over_other_topics_are_not_told_of(now: datetime) -> None:
    for topics in (["orders.*"], ["*"]):
        Operation.objects.create(
            verb="drop",
            state="queued",
            actor="user:anna",
            source="ui",
            topics=topics,
            reason="r",
            taken=True,
            created_at=now,
            expires_at=now,
            confirmed_at=now,
        )

    found = overview.find(None, limited("orders.*"), now=now)

    assert [row.operation.topics for row in found.operations] == [["orders.*"]]


def test_a_night_that_is_missing_or_failed_is_said_at_the_top(
    anna: Client, now: datetime
) -> None:
    poisons(now, 1)
    never = get(anna)
    reported(now - timedelta(days=2), made=now - timedelta(days=2))
    late = get(anna)
    reported(now, made=now - timedelta(hours=9))
    failed = asked(now, state="failed", finished_at=now, trouble="Spark died")
    said = get(anna)
    failed.delete()
    well = get(anna)

    assert "No nightly report has been made yet" in never
    assert "a night is missing" in late
    assert "failed: Spark died" in said
    assert 'role="alert"' not in well
    assert ">9h ago</time>" in well


def test_the_health_of_lanes_workers_and_brokers_is_told(
    anna: Client, orders: Topic, now: datetime
) -> None:
    silent = states(get(anna))
    WorkerBeat.objects.create(id=1, at=now)
    Lane.objects.update(state="running", seen_at=now)
    well = states(get(anna))
    Lane.objects.update(state="away", detail="connection refused")
    WorkerBeat.objects.update(at=now - timedelta(minutes=3))
    page = get(anna)

    assert silent == ["Behind", "None", "Unknown", "Not yet"]
    assert well == ["Up", "Up", "Up", "Not yet"]
    assert states(page) == ["Behind", "Silent", "Broker away", "Not yet"]
    assert "connection refused" in page


def states(page: str) -> list[str]:
    health = page[page.index('id="health"') :]
    return re.findall(r'class="pill[^"]*"><span[^>]*>.</span>([^<]+)', health)


def test_the_sample_is_plainly_marked(
    anna: Client, orders: Topic, now: datetime
) -> None:
    poisons(now, 1)
    plain = get(anna)
    Broker.objects.update(is_sample=True)
    marked = get(anna)

    assert "POISONWEB_DEMO" not in plain
    assert '<span class="badge">sample</span>' in marked
    assert "POISONWEB_DEMO=0" in marked


def test_no_text_of_a_message_breaks_the_page(anna: Client, now: datetime) -> None:
    exception = {
        "type": HOSTILE_TEXT,
        "message": HOSTILE_TEXT,
        "traceback": HOSTILE_TEXT,
    }
    poisons(now, 1, exception=exception, topic="</a>\u202e<script>alert(1)</script>")

    page = get(anna)

    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_it_asks_the_database_as_often_for_much_as_for_little(
    anna: Client, now: datetime
) -> None:
    def failing(numbers: range) -> tuple[int, str]:
        for number in numbers:
            poisons(now, 1, exception=broken(f"E{number}"), topic=f"topic {number}")
        with CaptureQueriesContext(connection) as queries:
            page = get(anna)
        return len(queries), page

    little, _ = failing(range(2))
    much, page = failing(range(2, 30))

    assert little == much <= 50
    assert page.count("</tr>") == overview.MOST_TOPICS + 1
    assert "All topics" in page


def test_a_number_that_takes_too_long_is_left_out() -> None:
    def slow() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5)")
        return "in time"

    assert unless_slow(slow, instead="not in time") == "not in time"


def test_a_database_that_is_away_is_not_merely_slow() -> None:
    def away() -> None:
        raise OperationalError("connection refused")

    with pytest.raises(OperationalError):
        unless_slow(away, instead=None)


def test_nobody_who_is_not_signed_in_has_running_operations(rf: RequestFactory) -> None:
    request = rf.get("/nowhere")
    request.user = AnonymousUser()

    assert shell(request)["running_operations"]() == []


def test_several_running_operations_lead_to_their_list(
    sign_in: SignIn, now: datetime
) -> None:
    client = sign_in()
    for _ in range(2):
        Operation.objects.create(
            verb="redrive",
            state="running",
            actor="user:anna",
            source="ui",
            topics=["*"],
            taken=True,
            created_at=now,
            expires_at=now,
            confirmed_at=now,
        )

    page = get(client)

    assert '<a class="running" href="/operations">2' in page
