"""The report pages show published numbers, and mark what is missing."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.brokers.models import Broker, Topic
from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import Absent
from apps.dashboard.report_params import ReportParams
from apps.dashboard.selectors import nightly_reports
from apps.dashboard.selectors.nightly_reports import AllTopicsReport, TopicReport
from apps.poison.models import Problem
from apps.reports.models import Day, Rate, Run
from apps.reports.services.report_requests import newest_over
from apps.team.rights import Principal, Role, Scope
from tests.failure_report_builders import poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get
from tests.published_reports import ONE_DAY, failed_run, problem_day, publish, rate, run

pytestmark = pytest.mark.django_db

# A Thursday, and the address of the report on the seven days up to it.
DAY = date(2026, 11, 19)
WEEK = ONE_DAY * 7
PAGE = "/reports?days=7&to=2026-11-19"
AFTER = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOSTILE = "</td><script>alert(1)</script>\u202e\x1b[31m" + "A" * 200
FORMULA = "=cmd|' /C calc'!A0"


def report(query: str = PAGE, *topics: str) -> AllTopicsReport | TopicReport:
    """Load a report for a principal with these topics, or with all."""
    reader = Principal(
        actor=Actor.user("anna"),
        scopes=frozenset({Scope.REPORTS_READ}),
        topics=topics or ("*",),
    )
    params = ReportParams.of(QueryDict(query.partition("?")[2]), now=AFTER)
    return nightly_reports.find(params, reader, now=AFTER)


def every(query: str = PAGE, *topics: str) -> AllTopicsReport:
    result = report(query, *topics)
    assert isinstance(result, AllTopicsReport)
    return result


def one(query: str = f"{PAGE}&topic=orders") -> TopicReport:
    result = report(query)
    assert isinstance(result, TopicReport)
    return result


def test_before_the_first_night_the_page_says_when_it_comes(sign_in: SignIn) -> None:
    page = get(sign_in(Role.VIEWER), "/reports")

    assert "No report yet" in page
    assert "after 01:00 UTC" in page
    assert "Report 20" not in page


def test_an_admin_need_not_wait_for_the_first_night(
    sign_in: SignIn, now: datetime
) -> None:
    admin = sign_in(Role.ADMIN)

    page = get(admin, "/reports")

    assert f"Report {newest_over(now)} now</button>" in page
    assert "data-live" not in page


def test_the_first_report_appears_by_itself(anna: Client) -> None:
    run(DAY, state="running", finished_at=None)

    page = get(anna, "/reports")

    assert "is running" in page
    assert 'data-live="2"' in page


def test_a_report_sums_up_its_days(anna: Client) -> None:
    publish(DAY, DAY - ONE_DAY)
    rate(DAY, 900, 3)
    rate(DAY - ONE_DAY, 100, 2)
    rate(DAY, 1000, 5, topic="payments")

    result = every()

    assert (result.total.delivered, result.total.failed) == (2000, 10)
    assert result.total.rate == pytest.approx(0.005)
    assert "0.50\u00a0%" in get(anna, PAGE)


def test_the_topics_with_the_most_failures_come_first() -> None:
    publish(DAY)
    for topic, failed in (("a", 1), ("b", 3), ("c", 2)):
        rate(DAY, 10, failed, topic=topic)

    assert [each.topic.name for each in every().series] == ["b", "c", "a"]


def test_a_day_without_a_report_is_a_gap_and_no_zero(anna: Client) -> None:
    publish(DAY, DAY - 2 * ONE_DAY)
    rate(DAY, 10, 0)

    (orders,) = every().series
    page = get(anna, f"{PAGE}&topic=orders")

    days = [(row.is_gap, row.rate and row.rate.failed) for row in orders.newest_first]
    assert days == [(False, 0), (True, None), (False, None), *[(True, None)] * 4]
    assert "5 of 7 days have no report" in orders.summary
    assert page.count(">no report<") == 2 * 5
    assert "nothing happened" in page


def test_days_without_a_report_are_not_said_to_be_without_failures(
    anna: Client,
) -> None:
    publish(DAY, DAY - 2 * ONE_DAY)

    page = get(anna, PAGE)

    assert "On the days with a report no message was delivered and none failed" in page
    assert "5 days have none." in page


def test_where_nothing_was_delivered_there_is_no_rate(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 0, 0)

    (orders,) = every().series

    assert orders.total.rate is None
    assert '<td class="num strong">—</td>' in get(anna, f"{PAGE}&topic=orders")


def test_the_chart_shows_failures_where_deliveries_are_not_counted(
    anna: Client,
) -> None:
    publish(DAY)
    rate(DAY, None, 7)

    (orders,) = every().series
    page = get(anna, f"{PAGE}&topic=orders")

    assert orders.summary == (
        "Failures by the day from 2026-11-13 to 2026-11-19: 7 in all, at most 7 on"
        " 2026-11-19; 6 of 7 days have no report."
    )
    assert orders.chart.top == 10
    assert "deliveries not counted" in page


def test_the_chart_says_in_a_sentence_what_it_shows() -> None:
    publish(*(DAY - number * ONE_DAY for number in range(7)))
    rate(DAY, 100, 1)
    rate(DAY - ONE_DAY, 100, 9)

    (orders,) = every().series

    assert orders.summary == (
        "Failure rate by the day from 2026-11-13 to 2026-11-19: 5.0\u00a0% in all,"
        " at most 9.0\u00a0% on 2026-11-18."
    )


def test_a_day_leads_to_its_messages(anna: Client, now: datetime) -> None:
    topic, newest = 'a "b" c', newest_over(now)
    (poison,) = poisons(now, 1, topic=topic)
    publish(newest)
    rate(newest, 10, 1, topic=topic)

    page = get(anna, "/reports?days=7")
    links = re.findall(r'href="(/messages\?q=topic[^"]+)"', page)
    there = next(link for link in links if str(newest) in link)

    assert len(links) == 2 * 7
    today = there.replace("&amp;", "&").replace(str(newest), str(now.date()))
    assert f'data-key="{poison.pk}"' in get(anna, today)


def test_a_bar_says_that_its_link_lists_what_last_failed_on_its_day(
    anna: Client,
) -> None:
    publish(DAY)
    rate(DAY, 1000, 663)

    for page in (get(anna, PAGE), get(anna, f"{PAGE}&topic=orders")):
        (bar,) = re.findall(r"<title>([^<]*663 failed[^<]*)</title>", page)
        assert bar.endswith("Opens the messages that last failed on this day.")
        assert "opens the messages that <em>last</em> failed on it" in page
        assert "It lists fewer messages than failed where one failed twice" in page


def test_there_is_no_rate_where_more_failed_than_were_delivered(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 10, 2)
    Rate.objects.update(failed=11, failure_rate=None, rate_low=None, rate_high=None)

    (orders,) = every().series

    assert orders.total.rate is None
    assert "100\u00a0%" not in get(anna, f"{PAGE}&topic=orders")


def test_failures_without_counted_deliveries_have_a_footnote(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 100, 5, uncounted=4)

    (orders,) = every().series

    assert orders.total.rate == pytest.approx(0.01)
    page = get(anna, PAGE)
    assert "† Some of these failed" in page
    # failed / delivered would give another rate than the page shows.
    assert "Failed</a></dt><dd>5†</dd>" in page


def test_the_sample_is_marked_and_says_that_it_was_made_up(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 10, 1)
    before = get(anna, PAGE)
    broker = Broker.objects.create(name="sample", kind="redis_streams", is_sample=True)
    Topic.objects.update(broker=broker)
    after = get(anna, PAGE)

    assert "made up" not in before
    assert '<span class="badge">sample</span>' in after
    assert "was made up" in after


def test_what_rose_stands_beside_the_mean_of_its_weekday(anna: Client) -> None:
    publish(*(DAY - number * WEEK for number in range(4)), DAY - ONE_DAY)
    rate(DAY, 100, 6)
    rate(DAY - ONE_DAY, 100, 90)
    for number, failed in ((1, 1), (2, 3)):
        rate(DAY - number * WEEK, 100, failed)

    rising = every().rising
    page = get(anna, PAGE)

    assert rising
    (orders,) = rising.topics
    assert (rising.day, rising.weeks) == (DAY, 3)
    assert orders.newest == pytest.approx(0.06)
    assert orders.usual == pytest.approx(0.02)
    assert orders.ratio == pytest.approx(3)
    assert "mean of the 3 Thursdays before it" in page
    assert ">3.0×<" in page  # noqa: RUF001


def test_what_did_not_rise_is_not_among_it() -> None:
    publish(*(DAY - number * WEEK for number in range(3)))
    for number, failed in ((0, 2), (1, 1), (2, 3)):
        rate(DAY - number * WEEK, 100, failed)

    rising = every().rising

    assert rising
    assert rising.topics == []


def test_nothing_rises_with_only_one_week_of_reports(anna: Client) -> None:
    publish(DAY, DAY - WEEK)
    rate(DAY, 100, 50)
    rate(DAY - WEEK, 100, 1)

    assert every().rising is None
    assert "What rose" not in get(anna, PAGE)


def test_a_topic_that_was_counted_only_once_has_no_usual() -> None:
    publish(DAY, DAY - WEEK, DAY - 2 * WEEK)
    rate(DAY, 100, 50)
    rate(DAY - WEEK, 100, 1)

    rising = every().rising

    assert rising
    assert rising.topics == []


def test_most_failures_above_the_usual_come_first() -> None:
    publish(DAY, DAY - WEEK, DAY - 2 * WEEK)
    for topic, delivered, failed in (("small", 10, 9), ("large", 10_000, 200)):
        rate(DAY, delivered, failed, topic=topic)
        for number in (1, 2):
            rate(DAY - number * WEEK, delivered, 1, topic=topic)

    rising = every().rising

    assert rising
    assert [row.name for row in rising.topics] == ["large", "small"]


def test_a_problem_that_was_not_there_before_rose_from_nothing(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    publish(DAY, DAY - WEEK, DAY - 2 * WEEK)
    rate(DAY, 10, 1)
    problem_day(DAY, poison.problem, 4)

    rising = every().rising
    page = get(anna, PAGE)

    assert rising
    (problem,) = rising.problems
    assert (problem.newest, problem.usual, problem.ratio) == (4, 0, None)
    assert f'href="/problems/{poison.problem_id}"' in page
    assert ">new<" in page


def test_a_published_week_without_the_problem_counts_as_none_of_it(
    now: datetime,
) -> None:
    (poison,) = poisons(now, 1)
    publish(DAY, DAY - WEEK, DAY - 2 * WEEK)
    problem_day(DAY, poison.problem, 4)
    problem_day(DAY - WEEK, poison.problem, 6)

    rising = every().rising

    assert rising
    assert [row.usual for row in rising.problems] == [3]


def test_who_sees_some_topics_gets_a_report_of_those(now: datetime) -> None:
    mine, other = poisons(now, 2, topic="orders.eu"), poisons(now, 1, topic="payments")
    publish(DAY, DAY - WEEK, DAY - 2 * WEEK)
    for (poison, *_), topic in ((mine, "orders.eu"), (other, "payments")):
        problem_day(DAY, poison.problem, 4)
        for number in range(3):
            rate(DAY - number * WEEK, 10, 3 - number, topic=topic)

    result = every(PAGE, "orders.*")

    assert list(result.names) == ["orders.eu"]
    assert result.total.failed == 3
    assert result.rising
    assert [row.name for row in result.rising.topics] == ["orders.eu"]
    assert [row.pk for row in result.rising.problems] == [mine[0].problem_id]
    with pytest.raises(Absent):
        report(f"{PAGE}&topic=payments", "orders.*")


def test_a_fresh_report_says_who_made_it_and_of_what(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 10, 1)

    page = get(anna, PAGE)

    number = Run.objects.get().pk
    assert f"by run {number} (2026-11-19), made" in page
    assert "2026-11-20T01:00:09Z" in page
    assert "100 rows in, 2 late" in page


@pytest.mark.parametrize(("hours", "stale"), [(25, False), (27, True)])
def test_a_report_is_stale_once_the_next_night_is_over(hours: int, stale: bool) -> None:
    publish(DAY)
    over = datetime(2026, 11, 20, tzinfo=UTC)

    freshness = nightly_reports.freshness(now=over + timedelta(hours=hours))

    assert freshness.is_stale is stale


def test_a_late_report_has_a_banner(anna: Client, now: datetime) -> None:
    publish(newest_over(now) - 2 * ONE_DAY)

    page = get(anna, "/reports")

    assert "the next night made no newer one" in page
    assert 'role="alert"' in page


def test_a_failed_run_has_a_banner_until_another_one_is_done(anna: Client) -> None:
    publish(DAY)
    failed_run(DAY, trouble=f"It broke. {HOSTILE}", finished_at=AFTER)
    failed = get(anna, PAGE)
    run(DAY, finished_at=AFTER + timedelta(hours=1))
    mended = get(anna, PAGE)

    assert "did not change. It broke." in failed
    assert "\u202e" not in failed
    assert "It broke." not in mended


def test_a_topic_is_shown_with_its_groups_and_its_hours(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 100, 6)
    rate(DAY, 100, 5, consumer_group="billing")
    rate(DAY, None, 1, consumer_group="")
    rate(DAY, 50, 4, hour=13)
    rate(DAY, 50, 2, hour=14)

    result = one()
    page = get(anna, f"{PAGE}&topic=orders")

    assert [group.group for group in result.groups] == ["billing", ""]
    assert result.whole.total.failed == 6
    assert result.hours[-1].hours[12] is None
    assert [cell.level for cell in result.heat.cells] == [4, 3]
    assert len(result.heat.gaps) == 6
    assert "Thu 2026-11-19 13:00 UTC: 8.0\u00a0%, 4 failed" in page
    assert "counted by the consumers" in page
    assert ">unknown<" in page


def test_a_topic_without_a_report_in_the_period_is_still_a_page(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 10, 1)

    page = get(anna, "/reports?topic=orders&days=7&to=2026-11-01")

    assert "7 of 7 days have no report" in page
    assert "nothing happened" in page


@pytest.mark.parametrize("topic", ["nowhere", "orders*"])
def test_a_topic_that_is_not_there_is_not_found(anna: Client, topic: str) -> None:
    publish(DAY)
    rate(DAY, 10, 1)

    get(anna, f"{PAGE}&topic={topic}", 404)


@pytest.mark.parametrize(
    "query",
    [
        "from=soon",
        "to=2026-13-01",
        "to=0001-01-01",
        "from=2026-11-19&to=2026-11-01",
        "from=2020-01-01&to=2026-11-01",
        "from=9999-12-31",
        "days=0",
        "days=367",
        "days=x",
        "days=" + "9" * 10_000,
        "topic=%00",
    ],
)
def test_an_invalid_period_shows_an_error_and_the_default_period(
    anna: Client, now: datetime, query: str
) -> None:
    publish(newest_over(now))
    rate(newest_over(now), 10, 1)

    page, file = get(anna, f"/reports?{query}", 422), anna.get(f"/reports.csv?{query}")

    assert 'id="wrong" role="alert"' in page
    assert "orders" in page
    assert file.status_code == 422


def test_a_day_that_is_not_over_is_left_out(anna: Client, now: datetime) -> None:
    publish(newest_over(now))
    rate(newest_over(now), 10, 1)

    page = get(anna, "/reports?days=7&to=9999-12-31")

    assert f'name="to" value="{newest_over(now)}"' in page


def test_no_name_breaks_a_page_or_a_file(anna: Client) -> None:
    publish(DAY)
    for name in (HOSTILE, FORMULA):
        rate(DAY, 10, 1, topic=name)
        rate(DAY, 10, 1, topic=name, consumer_group=name)
    period = {"days": "7", "to": "2026-11-19"}

    whole, *each = [
        anna.get("/reports", {**period, "topic": name}).content.decode()
        for name in ("", HOSTILE, FORMULA)
    ]

    assert all("<script>alert" not in page for page in (whole, *each))
    assert "\u202e" not in re.sub(r'<option value="[^"]*"', "", whole)


def rows(client: Client, query: str = "days=7&to=2026-11-19") -> list[dict[str, str]]:
    response = client.get(f"/reports.csv?{query}")
    assert response.status_code == 200
    text = b"".join(response.streaming_content).decode()  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_file_holds_every_number_as_it_is(anna: Client) -> None:
    (day,) = publish(DAY)
    rate(DAY, 20_000, 3, p95_ms=4096, skipped=1)

    (row,) = rows(anna)

    assert row == {
        "day": "2026-11-19",
        "topic": "orders",
        "of": "topic",
        "consumer_group": "",
        "source": "sdk",
        "delivered": "20000",
        "failed": "3",
        "uncounted": "0",
        "poisoned": "0",
        "skipped": "1",
        "retried": "0",
        "redriven": "0",
        "confirmed": "0",
        "recurred": "0",
        "dropped": "0",
        "failure_rate": "0.00015",
        "rate_low": "7.5e-05",
        "rate_high": "0.0003",
        "p50_ms": "16",
        "p95_ms": "4096",
        "p99_ms": "",
        "run": str(day.run_id),
    }


def test_the_file_tells_a_group_without_a_name_from_all_of_them(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 10, 2)
    rate(DAY, None, 1, consumer_group="")
    rate(DAY, 10, 1, hour=3)
    rate(DAY, 10, 1, topic="payments")

    totals = [
        (row["of"], row["failed"]) for row in rows(anna, "to=2026-11-19&topic=orders")
    ]

    assert sorted(totals) == [("consumer_group", "1"), ("topic", "2")]


NAMES = (
    FORMULA,
    "+1",
    "-1",
    "@x",
    "\tx",
    "\rx",
    " =1",
    "＝1",  # noqa: RUF001
    "'=1",
    "'",
    'a "b", c\r\nd',
    HOSTILE,
    "plain",
)


def test_no_cell_of_the_file_is_a_formula_and_all_come_back_as_they_were(
    anna: Client,
) -> None:
    publish(DAY)
    for name in NAMES:
        rate(DAY, 10, 1, topic=name)

    cells = [row["topic"] for row in rows(anna)]

    assert not [cell for cell in cells if cell[0] in "=+-@\t\r\0 ＝＋－＠"]  # noqa: RUF001
    assert {cell.removeprefix("'") for cell in cells} == set(NAMES)


def test_the_file_has_a_name_of_its_own_whatever_the_topic_is(anna: Client) -> None:
    topic = 'a"\r\nSet-Cookie: x=1'
    publish(DAY)
    rate(DAY, 10, 1, topic=topic)

    query = {"topic": topic, "from": "2026-11-13", "to": "2026-11-19"}
    response = anna.get("/reports.csv", query)

    assert response["Content-Disposition"] == (
        'attachment; filename="failure-rates-2026-11-13-to-2026-11-19.csv"'
    )
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert b"".join(response.streaming_content).count(b"\r\n") == 3  # type: ignore[attr-defined]


def test_the_file_holds_more_rows_than_are_written_at_once(anna: Client) -> None:
    days = [DAY - number * ONE_DAY for number in range(300)]
    publish(*days)
    topics = [rate(DAY, 1, 0, topic=name).topic for name in "abcd"]
    template = Rate.objects.filter(topic=topics[0]).get()
    for topic in topics:
        for day in days[1:]:
            template.pk, template.day_id, template.topic = None, day, topic
            template.save()

    assert len(rows(anna, "days=300&to=2026-11-19")) == 1200


def test_the_runs_are_listed_with_what_went_wrong(anna: Client) -> None:
    run(DAY - 27 * ONE_DAY, DAY)
    failed_run(DAY, trouble="The job broke.", log=f"Traceback\n{HOSTILE}")

    page = get(anna, "/reports/runs")

    assert "2026-10-23 to 2026-11-19" in page
    assert page.index("The job broke.") < page.index("2026-10-23")
    assert "Traceback" in page
    assert "U+202E" in page
    assert "<script>alert" not in page
    assert "9\u00a0s" in page


def test_the_pages_of_the_runs_hold_each_of_them_once(anna: Client) -> None:
    for number in range(60):
        at = AFTER + timedelta(minutes=number)
        run(DAY, asked_at=at)

    first = get(anna, "/reports/runs")
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older
    second = get(anna, f"/reports/runs{older[1].replace('&amp;', '&')}")

    ids = [re.findall(r'\?subject=report:(\d+)"', page) for page in (first, second)]
    assert [len(page) for page in ids] == [50, 10]
    assert len({*ids[0], *ids[1]}) == 60


def test_runs_are_followed_more_closely_while_one_goes_on(anna: Client) -> None:
    unfinished = run(DAY, state="running", finished_at=None)
    going = get(anna, "/reports/runs")
    Run.objects.filter(pk=unfinished.pk).update(state="done", finished_at=AFTER)
    over = get(anna, "/reports/runs")

    assert 'data-live="2"' in going
    assert 'data-live="5"' in over


def test_an_admin_asks_for_a_run(sign_in: SignIn, now: datetime) -> None:
    admin, day = sign_in(Role.ADMIN), newest_over(now)

    response = admin.post("/reports/run", {"from": day - ONE_DAY, "to": day})

    new_run = Run.objects.get()
    assert (response.status_code, response["Location"]) == (302, "/reports/runs")
    assert (new_run.first_day, new_run.last_day, new_run.state) == (
        day - ONE_DAY,
        day,
        "queued",
    )
    assert new_run.asked_by == "user:adminFalse"


@pytest.mark.parametrize(
    ("data", "field", "remedy"),
    [
        ({"from": "soon", "to": "2026-11-19"}, "from", "send a day such as"),
        ({"from": "2026-11-19", "to": ""}, "to", "choose a day"),
        ({"to": "2026-11-19"}, "from", "choose a day"),
        ({"from": "2026-11-19", "to": "2026-11-01"}, "to", "must not lie before"),
        ({"from": "2026-11-19", "to": "9999-12-30"}, "from", "at most"),
    ],
)
def test_a_run_of_invalid_days_is_refused_with_the_remedy(
    sign_in: SignIn, data: dict[str, str], field: str, remedy: str
) -> None:
    response = sign_in(Role.ADMIN).post("/reports/run", data)

    page = response.content.decode()
    assert response.status_code == 422
    assert re.search(rf'id="wrong" role="alert">{field}: [^<]*{remedy}', page)
    assert all(f'name="{name}" value="{data[name]}"' in page for name in data)
    assert Run.objects.count() == 0


def test_a_day_that_is_not_over_cannot_be_reported(
    sign_in: SignIn, now: datetime
) -> None:
    day = clock.now().date() + ONE_DAY

    response = sign_in(Role.ADMIN).post("/reports/run", {"from": day, "to": day})

    assert response.status_code == 422
    assert "is over at" in response.content.decode()


def test_a_second_run_of_a_day_is_refused_while_one_is_unfinished(
    sign_in: SignIn, now: datetime
) -> None:
    admin, day = sign_in(Role.ADMIN), newest_over(now)
    first = run(day, state="running", finished_at=None)

    response = admin.post("/reports/run", {"from": day, "to": day})

    assert response.status_code == 409
    assert f"run {first.pk} is making some of these days" in response.content.decode()


def test_a_viewer_sees_a_disabled_button_with_the_reason(sign_in: SignIn) -> None:
    viewer = sign_in(Role.VIEWER)

    page = get(viewer, "/reports/runs")
    response = viewer.post("/reports/run", {"from": DAY, "to": DAY})

    assert 'aria-disabled="true" aria-describedby="may-not">Run again' in page
    assert "an admin may" in page
    assert response.status_code == 403


def test_a_reload_of_a_refusal_leads_back_to_the_runs(sign_in: SignIn) -> None:
    response = sign_in(Role.ADMIN).get("/reports/run")

    assert (response.status_code, response["Location"]) == (302, "/reports/runs")


@pytest.mark.parametrize("path", ["/reports", "/reports/runs", "/reports?topic=a"])
def test_every_form_that_acts_carries_its_own_token(sign_in: SignIn, path: str) -> None:
    Topic.objects.create(name="a", native_name="a")

    page = get(sign_in(Role.ADMIN), path)

    forms = re.findall(r'<form[^>]* method="post".*?</form>', page, re.DOTALL)
    assert forms
    assert [form for form in forms if "csrfmiddlewaretoken" not in form] == []


@pytest.mark.parametrize("path", [PAGE, f"{PAGE}&topic=a0"])
def test_a_page_asks_as_often_for_many_topics_and_days_as_for_one(
    anna: Client, path: str
) -> None:
    (problem,) = {poison.problem for poison in poisons(clock.now(), 1, topic="a0")}
    published = [DAY - number * WEEK for number in range(4)]
    publish(*published)
    rate(DAY, 10, 5, topic="a0")
    problem_day(DAY, problem, 3)
    query_count = queries(anna, path)

    Day.objects.update(late_rows=0)
    for number in range(1, 12):
        poison = poisons(clock.now(), 1, topic=f"a{number}")[0]
        for day in published:
            rate(day, 10, 5, topic=f"a{number}")
            rate(day, 10, 5, topic=f"a{number}", consumer_group="billing")
        problem_day(DAY, Problem.objects.get(pk=poison.problem_id), 3)

    assert queries(anna, path) == query_count <= 16


def queries(client: Client, path: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        get(client, path)
    return len(captured)
