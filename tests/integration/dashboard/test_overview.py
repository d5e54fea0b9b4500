"""The overview: alarms, problems that need a person, topics and operations."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import OperationalError, connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from apps.brokers.models import Broker, Topic
from apps.capture.models import LANE_LIVES, Lane
from apps.core import statement_timeouts
from apps.core.actor import Actor
from apps.core.postgres_session_usage import SPARE
from apps.core.statement_timeouts import FIGURE_MS, TooSlow, unless_slow
from apps.dashboard.context_processors import shell
from apps.dashboard.keyset_pagination import BoundedCount
from apps.dashboard.selectors import overview, problem_ranking
from apps.poison.models import Poison
from apps.reports.models import Day, Run
from apps.team.rights import Principal, Role, Scope
from apps.triage.models import Operation, WorkerBeat
from tests.failure_report_builders import count_up, counter, drop, poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get
from tests.integration.dashboard.test_counts_that_time_out import HINT, slow
from tests.postgres_connection_limit_and_lock_waits import sessions_left
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db

HOSTILE_TEXT = "</a><script>alert(1)</script>\u202e\x00" + "A" * 500


def broken(kind: str) -> dict[str, str]:
    return {"type": kind, "message": "it broke", "traceback": ""}


def limited(*topics: str) -> Principal:
    return Principal(actor=Actor.key("ci"), scopes=frozenset(Scope), topics=topics)


def report_run(now: datetime, **changes: object) -> Run:
    run = {
        "first_day": now.date() - timedelta(days=1),
        "last_day": now.date() - timedelta(days=1),
        "asked_by": "system:nightly",
        "asked_at": now,
        "snapshot": "1:1:",
        "as_of": now,
    }
    return Run.objects.create(**{**run, **changes})


def reported(now: datetime, *, made_at: datetime) -> Day:
    run = report_run(now, state="done", started_at=made_at, finished_at=made_at)
    return Day.objects.create(day=run.last_day, run=run, rows_in=1, late_rows=0)


def test_an_installation_without_a_message_says_how_to_send_the_first(
    anna: Client,
) -> None:
    page = get(anna, "/")

    assert "No message yet" in page
    assert 'href="/help#first"' in page


def test_nothing_open_is_all_clear(anna: Client, now: datetime) -> None:
    drop(now, *poisons(now - timedelta(hours=3), 1))

    page = get(anna, "/")

    assert "All clear: 0 open" in page
    assert ">3h ago</time>" in page


def test_the_first_visit_counts_the_new_problems_of_a_day(
    anna: Client, now: datetime
) -> None:
    poisons(now - timedelta(hours=23), 1, exception=broken("Young"))
    poisons(now - timedelta(hours=25), 1, exception=broken("Elderly"))

    page = get(anna, "/")

    assert re.search(r"1 new</a> in 24 hours", page)
    assert titles(page) == ["Young", "Elderly"]
    assert lives(page) == ["New", "Ongoing"]


def test_a_later_visit_counts_problems_new_since_the_previous_visit(
    anna: Client, now: datetime
) -> None:
    poisons(now - timedelta(hours=5), 1, exception=broken("Before"))
    poisons(now - timedelta(hours=1), 2, exception=broken("Since"))
    session = anna.session
    session["visit"] = [(now - timedelta(hours=2)).isoformat(), None]
    session.save()

    page = get(anna, "/")

    assert re.search(r"1 new</a> since you were last here, <time[^>]*>2h ago", page)
    assert titles(page) == ["Since", "Before"]


def test_a_page_that_refreshes_itself_is_no_visit(anna: Client, now: datetime) -> None:
    away = (now - timedelta(hours=2)).isoformat()
    session = anna.session
    session["visit"] = [away, None]
    session.save()

    anna.get("/", headers={"hx-request": "true"})

    assert anna.session["visit"] == [away, None]


def test_problems_are_ordered_by_their_open_messages_now(
    anna: Client, now: datetime
) -> None:
    poisons(now - timedelta(days=3), 5, exception=broken("Old"))
    poisons(now, 9, exception=broken("Fire"))
    poisons(now - timedelta(minutes=1), 1, exception=broken("Small"))
    drop(now, *poisons(now, 20, exception=broken("Dropped")))

    page = get(anna, "/")

    assert titles(page) == ["Fire", "Old", "Small"]
    assert re.findall(r'<td class="num strong">([\d,]+)<', page)[:3] == ["9", "5", "1"]


def test_five_hundred_failures_of_three_minutes_are_the_first_row(
    anna: Client, now: datetime
) -> None:
    poisons(now - timedelta(hours=3), 30, exception=broken("Usual"))
    before = titles(get(anna, "/"))
    for second in range(10):
        poisons(now - timedelta(seconds=17 * second), 50, exception=broken("Fire"))

    page = get(anna, "/")

    assert before == ["Usual"]
    assert titles(page) == ["Fire", "Usual"]
    row = page[page.index(">Fire</a>") : page.index(">Usual</a>")]
    assert '<td class="num desk-only">500</td>' in row
    assert '<td class="num strong">500<' in row
    assert 'aria-label="500 failures"' in row


@pytest.mark.django_db(transaction=True)
def test_a_row_leads_to_a_preview_of_its_open_messages(
    anna: Client, now: datetime
) -> None:
    (fire, *_) = poisons(now, 3, exception=broken("Fire"))
    poisons(now, 2, exception=broken("Other"))
    drop(now, fire)
    page = get(anna, "/")
    row = page[page.index(f'id="needs-{fire.problem_id}"') :].partition("</tr>")[0]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', row))
    fields.pop("csrfmiddlewaretoken")

    response = anna.post("/operations/preview", fields | {"verb": "drop"}, follow=True)

    assert "Drop 2 messages?" in response.content.decode()
    assert fields["back"] == "/"
    assert Operation.objects.get().query == f"problem:{fire.problem_id} is:open"


def test_a_viewer_sees_the_buttons_of_each_row_disabled_with_the_reason(
    sign_in: SignIn, now: datetime
) -> None:
    poisons(now, 1, exception=broken("A"))
    poisons(now, 1, exception=broken("B"))

    page = get(sign_in(Role.VIEWER), "/")

    assert page.count('aria-disabled="true" aria-describedby="may-not"') == 4
    assert page.count('id="may-not"') == 1
    assert "Your role only reads." in page
    assert 'action="/operations/preview"' not in page


def test_messages_that_came_back_are_counted_in_the_row_of_their_problem(
    anna: Client, now: datetime
) -> None:
    back, _ = poisons(now, 2, exception=broken("Back"))
    poisons(now, 1, exception=broken("Quiet"))
    Poison.objects.filter(pk=back.pk).update(redrives=2, recurrences=1)

    page = get(anna, "/")

    badge = '1<span class="phone-brief"> came back'
    assert page.count(badge) == 1
    assert page.index(">Back</a>") < page.index(badge) < page.index(">Quiet<")


def test_only_ten_problems_are_shown_and_the_others_are_counted(
    anna: Client, now: datetime
) -> None:
    for number in range(13):
        poisons(now, 1, exception=broken(f"E{number}"))

    page = get(anna, "/")

    assert len(titles(page)) == overview.MOST_SHOWN == 10
    assert "3 other problems with open messages" in page


def test_problems_are_ranked_by_their_open_messages(now: datetime) -> None:
    for age, number in enumerate((4, 1, 5, 3)):
        for minute in range(number):
            at = now - timedelta(hours=age, minutes=minute)
            poisons(at, 1, exception=broken(f"E{number}"))

    result = problem_ranking.rank_problems(limited("*"))

    assert not isinstance(result, TooSlow)
    assert [each.open for each in result.problems] == [5, 4, 3, 1]
    assert result.is_whole


def test_a_ranking_of_only_the_latest_problems_says_so(
    anna: Client, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_ranking, "MOST_PROBLEMS", 2)
    monkeypatch.setattr(overview, "MOST_PROBLEMS", 2)
    for age in range(3):
        poisons(now - timedelta(hours=age), age + 1, exception=broken(f"E{age}"))

    page = get(anna, "/")

    assert titles(page) == ["E1", "E0"]
    assert "of the 2 that failed last" in page
    assert "All problems with open messages" in page


def test_without_figures_the_problems_that_failed_last_are_shown_with_dashes(
    anna: Client, now: datetime
) -> None:
    poisons(now - timedelta(hours=2), 3, exception=broken("Earlier"))
    poisons(now, 1, exception=broken("Later"))

    with slow(lambda _: True):
        page = get(anna, "/")

    assert titles(page) == ["Later", "Earlier"]
    assert "their open messages took too long to count" in page
    row = page[page.index(">Later</a>") : page.index(">Earlier</a>")]
    # Came back, failures by the hour, of the last hour, and open.
    assert row.count(HINT) == 4
    assert 'aria-disabled="true"' not in row


def test_a_person_sees_only_what_is_on_their_topics(now: datetime) -> None:
    for topic in ("orders.eu", "secret"):
        poisons(now - timedelta(hours=2), 1, topic=topic, exception=broken(topic))
        messages = poisons(now, 5, topic=topic, exception=broken(topic))
        Poison.objects.filter(pk=messages[0].pk).update(redrives=1, recurrences=1)

    result = overview.find(None, limited("orders.*"), now=now)

    rows = [(needy.problem.topic.name, needy.came_back) for needy in result.needs.rows]
    assert rows == [("orders.eu", 1)]
    assert result.needs.new == BoundedCount(1)
    assert [row.topic.name for row in result.topics] == ["orders.eu"]
    assert result.open == 6


def test_topics_are_ordered_by_open_messages_then_by_failure_rate(
    anna: Client, now: datetime
) -> None:
    poisons(now, 1, topic="a few")
    poisons(now, 7, topic="most")
    drop(now, *poisons(now, 2, topic="dropped, low rate"))
    drop(now, *poisons(now, 2, topic="dropped, high rate"))
    minute = now.replace(second=0, microsecond=0).isoformat()
    count_up(now, counter(topic="dropped, low rate", minute=minute, handled=998))
    count_up(now, counter(topic="dropped, high rate", minute=minute, handled=2))

    page = get(anna, "/")

    table = page[page.index('id="topics"') :].partition("</table>")[0]
    names = re.findall(r'href="/topics/\d+">([^<]+)<', table)
    assert names == ["most", "a few", "dropped, high rate", "dropped, low rate"]


def test_rows_of_one_table_share_the_scale_that_its_head_names(
    anna: Client, now: datetime
) -> None:
    poisons(now, 38, exception=broken("Fire"))
    poisons(now, 1, exception=broken("One"))

    page = get(anna, "/")

    heights = [
        re.findall(
            r'height="([\d.]+)"/>', page[page.index(title) :].partition("</svg>")[0]
        )
        for title in (">Fire</a>", ">One</a>")
    ]
    assert heights == [["19.0"], ["1.0"]]
    assert "to 38/h</span>" in page


def test_operations_over_other_topics_are_not_shown(now: datetime) -> None:
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

    result = overview.find(None, limited("orders.*"), now=now)

    assert [row.operation.topics for row in result.operations] == [["orders.*"]]


def test_a_report_that_is_missing_or_failed_is_in_the_strip(
    anna: Client, now: datetime
) -> None:
    poisons(now, 1)
    never = get(anna, "/")
    reported(now - timedelta(days=2), made_at=now - timedelta(days=2))
    late = get(anna, "/")
    reported(now, made_at=now - timedelta(hours=9))
    failed = report_run(now, state="failed", finished_at=now, trouble="Spark died")
    page = get(anna, "/")
    failed.delete()
    well = get(anna, "/")

    assert strip(never) == strip(well) == []
    assert "the first is made after the day is over" in never
    assert [line[:2] for line in strip(late)] == [("Late", "Nightly report")]
    assert "a night is missing" in late
    assert [line[:2] for line in strip(page)] == [("Failed", "Nightly report")]
    assert "failed: Spark died" in page
    assert ">9h ago</time>" in well


def test_the_strip_names_a_broker_that_is_away_and_a_worker_that_is_silent(
    anna: Client, orders: Topic, now: datetime
) -> None:
    WorkerBeat.objects.create(id=1, at=now)
    Lane.objects.update(state="running", seen_at=now)
    well = get(anna, "/")
    Lane.objects.update(state="away", detail="connection refused")
    WorkerBeat.objects.update(at=now - timedelta(minutes=3))
    page = get(anna, "/")

    assert (strip(well), states(well)) == ([], ["Up", "Up", "Up", "Not yet"])
    assert strip(page) == [
        (
            "Broker away",
            "Broker redis",
            "nothing is captured from orders: connection refused",
        ),
        (
            "Silent",
            "Worker",
            "operations wait until one runs; the last was heard 3m ago",
        ),
    ]
    assert states(page) == ["Stopped", "Silent", "Broker away", "Not yet"]
    assert page.index('class="strip"') < page.index('id="needs"')


@pytest.mark.parametrize(
    ("state", "pill"),
    [("missing", "Queue missing"), ("holding", "Holding"), ("running", "Stopped")],
)
def test_the_strip_names_a_lane_that_does_not_work(
    anna: Client, orders: Topic, now: datetime, state: str, pill: str
) -> None:
    is_silent = state == "running"
    heard = now - LANE_LIVES * 2 if is_silent else now
    Lane.objects.update(state=state, seen_at=heard, detail="why")
    other_lane(orders, state="running", seen_at=now)

    page = get(anna, "/")

    detail = "last heard just now" if is_silent else "why"
    assert strip(page) == [(pill, "Lane orders", detail)]


def test_the_strip_says_once_that_no_lane_runs(
    anna: Client, orders: Topic, now: datetime
) -> None:
    other_lane(orders)
    never = strip(get(anna, "/"))
    Lane.objects.update(state="running", seen_at=now - timedelta(hours=2))
    stopped = strip(get(anna, "/"))

    assert never == [("Stopped", "Lanes", "none has run yet")]
    assert stopped == [
        ("Stopped", "Lanes", "nothing is captured; the last was heard 2h ago")
    ]


def test_a_paused_lane_is_neither_behind_nor_an_alarm(
    anna: Client, orders: Topic, now: datetime
) -> None:
    Lane.objects.update(state="running", seen_at=now)
    other_lane(orders, state="paused", paused=True, seen_at=now)
    page = get(anna, "/")
    Lane.objects.update(state="paused", paused=True, seen_at=now - timedelta(days=1))
    resting = get(anna, "/")

    assert strip(page) == strip(resting) == []
    assert states(page)[0] == "Up"
    assert "1 of 2 run, 1 paused" in page
    assert states(resting)[0] == "All paused"


def test_the_strip_says_when_sessions_of_postgres_run_short(anna: Client) -> None:
    def is_quiet() -> bool:
        with sessions_left(SPARE):
            return strip(get(anna, "/")) == []

    def says_so() -> bool:
        with sessions_left(SPARE - 1) as most:
            return strip(get(anna, "/")) == [
                (
                    "Running short",
                    "Sessions of Postgres",
                    f"{most - SPARE + 1} of {most} are in use; without one no process "
                    "starts and no operation runs: raise the connection limit of the "
                    "database, or run fewer processes",
                )
            ]

    # A session that a thread of another test opens or ends meanwhile is counted, too.
    wait_until(is_quiet)
    wait_until(says_so)


def other_lane(like: Topic, **changes: object) -> Lane:
    other = Topic.objects.create(
        name="other",
        native_name="other",
        broker=like.broker,
        dead_letter_queue="other-poison",
    )
    return Lane.objects.create(topic=other, mode="capture", **changes)


def strip(page: str) -> list[tuple[str, ...]]:
    """Return the lines of the red strip: state, component and detail."""
    _, _, rest = page.partition('<section class="strip"')
    lines = re.findall(r"<li>(.*?)</li>", rest.partition("</section>")[0], re.DOTALL)
    bare = [re.sub(r'<span aria-hidden="true">.</span>', "", line) for line in lines]
    parts = [re.findall(r"<(?:span|a) [^>]*>(.*?)</(?:span|a)>", line) for line in bare]
    return [tuple(re.sub(r"<[^>]+>", "", part) for part in each) for each in parts]


def titles(page: str) -> list[str]:
    """List the problems of *Needs you*, from the top."""
    return re.findall(r'\?from=overview">([^<]+)</a>', page)


def lives(page: str) -> list[str]:
    return re.findall(r"</span>(New|Ongoing)</span>", page)


def states(page: str) -> list[str]:
    health = page[page.index('id="health"') :]
    return re.findall(r'class="pill[^"]*"><span[^>]*>.</span>([^<]+)', health)


def test_the_sample_is_plainly_marked(
    anna: Client, orders: Topic, now: datetime
) -> None:
    poisons(now, 1)
    plain = get(anna, "/")
    Broker.objects.update(is_sample=True)
    marked = get(anna, "/")

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

    page = get(anna, "/")

    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_it_asks_the_database_as_often_for_much_as_for_little(
    anna: Client, now: datetime
) -> None:
    def failing(numbers: range) -> tuple[int, str]:
        for number in numbers:
            poisons(now, 1, exception=broken(f"E{number}"), topic=f"topic {number}")
        with CaptureQueriesContext(connection) as queries:
            page = get(anna, "/")
        return len(queries), page

    # The first view of a minute stores the visit.
    get(anna, "/")
    little, _ = failing(range(2))
    much, page = failing(range(2, 30))

    # In a test's transaction each count needs three statements more.
    assert little == much <= 42
    assert page.count("</tr>") == overview.MOST_SHOWN + overview.MOST_TOPICS + 2
    assert "All topics" in page


def test_a_number_that_takes_too_long_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statement_timeouts, "FIGURE_MS", FIGURE_MS)

    def slow() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5)")
        return "in time"

    assert isinstance(unless_slow(slow), TooSlow)


def test_a_database_that_is_away_is_not_merely_slow() -> None:
    def away() -> None:
        raise OperationalError("connection refused")

    with pytest.raises(OperationalError):
        unless_slow(away)


def test_an_anonymous_request_has_no_running_operations(rf: RequestFactory) -> None:
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

    page = get(client, "/")

    assert re.search(r'<a class="running" title="[^"]+" href="/operations">2', page)
