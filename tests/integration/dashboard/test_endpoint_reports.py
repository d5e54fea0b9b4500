"""The report page of endpoints shows published numbers, and marks what is missing."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client

from apps.core.actor import Actor
from apps.dashboard.report_params import EndpointReportParams
from apps.dashboard.selectors import endpoint_reports
from apps.dashboard.selectors.endpoint_reports import EndpointsReport
from apps.reports.models import Day
from apps.team.rights import Principal, Role, Scope
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get, words
from tests.published_reports import ONE_DAY, endpoint_day, publish, rate, run

pytestmark = pytest.mark.django_db

DAY = date(2026, 11, 19)
PAGE = "/reports/endpoints?days=7&to=2026-11-19"
AFTER = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOSTILE = "</td><script>alert(1)</script>\u202e\x1b[31m" + "A" * 200
FORMULA = "=cmd|' /C calc'!A0"


def report(query: str = PAGE, *topics: str) -> EndpointsReport:
    reader = Principal(
        actor=Actor.user("anna"),
        scopes=frozenset({Scope.REPORTS_READ}),
        topics=topics or ("*",),
    )
    params = EndpointReportParams.of(QueryDict(query.partition("?")[2]), now=AFTER)
    return endpoint_reports.find(params, reader, now=AFTER)


def test_the_days_of_each_endpoint_are_added_up(anna: Client) -> None:
    publish(DAY, DAY - ONE_DAY, DAY - 7 * ONE_DAY)
    endpoint_day(DAY, dropped=3, forwarded=2, unknown=4, waiting=5, longest_ms=9000)
    retries: dict[str, Any] = {
        "after_2": 1,
        "after_3": 1,
        "after_4_to_10": 1,
        "after_more": 1,
    }
    endpoint_day(DAY - ONE_DAY, calls=1000, timed=6, waiting=400, **retries)
    endpoint_day(DAY - 7 * ONE_DAY)
    endpoint_day(DAY, "other")

    quote, other = report().totals
    page = get(anna, PAGE)

    assert quote._asdict() == {
        "endpoint": "quote",
        "calls": 1020,
        "succeeded_at_first": 26,
        "succeeded_later": 8,
        "given_up": 2,
        "dropped": 3,
        "forwarded": 2,
        "unknown": 4,
        "waiting": 5,
        "longest_ms": 9000,
        "is_partial": False,
    }
    assert other.endpoint == "other"
    assert "1,020" in page
    assert '<a href="/deliveries?endpoint=quote">' in page
    assert "†" not in page
    assert "deliveries that went to a topic or to another endpoint" in page


def test_where_most_did_not_succeed_comes_first_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch, anna: Client
) -> None:
    publish(DAY)
    for name, dropped in (("a", 1), ("b", 3), ("c", 2)):
        endpoint_day(DAY, name, dropped=dropped)
    monkeypatch.setattr(endpoint_reports, "MOST_ENDPOINTS", 2)

    assert [total.endpoint for total in report().totals] == ["b", "c"]
    assert "The table has 2 endpoints of 3" in words(get(anna, PAGE))


def test_an_endpoint_by_the_day_says_why_a_day_has_no_numbers(anna: Client) -> None:
    publish(DAY, DAY - ONE_DAY, DAY - 2 * ONE_DAY)
    endpoint_day(DAY, after_3=77, timed=79, p95_ms=15_000, longest_ms=15_000)
    endpoint_day(DAY - ONE_DAY, "other")

    page = get(anna, f"{PAGE}&endpoint=quote")

    days = [
        (row.counts is not None, row.why)
        for row in report(f"{PAGE}&endpoint=quote").days
    ]
    assert days[:3] == [
        (True, "nothing happened"),
        (False, "nothing happened"),
        # A release that knew no endpoints published it.
        (False, "endpoints not counted"),
    ]
    assert days[3:] == [(False, "no report")] * 4
    assert page.count(">no report<") == 4
    assert page.count(">endpoints not counted<") == 1
    assert "15.0\u00a0s" in page
    assert ">77<" in page
    assert ">other<" not in page


def test_a_day_that_was_counted_late_is_marked(anna: Client) -> None:
    publish(DAY)
    endpoint_day(DAY, is_partial=True)

    assert "quote †" in words(get(anna, PAGE))
    assert "2026-11-19 †" in words(get(anna, f"{PAGE}&endpoint=quote"))
    assert "may have been deleted before" in words(get(anna, PAGE))


def test_before_the_first_night_the_page_says_when_it_comes(anna: Client) -> None:
    assert "No report yet" in get(anna, "/reports/endpoints")


def test_the_first_report_appears_by_itself(anna: Client) -> None:
    run(DAY, state="running", finished_at=None)

    assert 'data-live="2"' in get(anna, "/reports/endpoints")


@pytest.mark.parametrize(
    ("counts_endpoints", "query", "sentence"),
    [
        (False, "", "No run has counted endpoints on any of these days."),
        (True, "", "no endpoint was called, and nothing waited for one."),
        (
            True,
            "&endpoint=x",
            "this endpoint was not called, and nothing waited for it",
        ),
    ],
)
def test_a_period_without_endpoints_says_so(
    anna: Client, query: str, sentence: str, *, counts_endpoints: bool
) -> None:
    publish(DAY)
    Day.objects.update(counts_endpoints=counts_endpoints)

    assert sentence in words(get(anna, PAGE + query))


def test_a_person_sees_the_endpoints_of_their_topics(sign_in: SignIn) -> None:
    publish(DAY)
    endpoint_day(DAY)
    endpoint_day(DAY, "other")

    assert [each.endpoint for each in report(PAGE, "gateway/o*").totals] == ["other"]
    assert report(f"{PAGE}&endpoint=quote", "gateway/o*").totals == []
    assert report(PAGE, "gateway/o*").number == 1
    assert get(sign_in(Role.VIEWER), PAGE)


def test_the_reports_lead_to_the_endpoints_of_the_same_days(anna: Client) -> None:
    publish(DAY)
    rate(DAY, 10, 1)

    page = get(anna, "/reports?days=7&to=2026-11-19")

    assert '/reports/endpoints?from=2026-11-13&amp;to=2026-11-19">Endpoints' in page


def test_hostile_names_stay_text(anna: Client) -> None:
    publish(DAY)
    for name in (HOSTILE, FORMULA):
        endpoint_day(DAY, name)

    page = get(anna, PAGE)
    one = anna.get("/reports/endpoints", {"to": str(DAY), "endpoint": HOSTILE})

    for text in (page, one.content.decode()):
        assert "<script>alert" not in text
        assert HOSTILE[:25] in words(text)
    # The command to copy and the form's field have the name as it is.
    assert "\u202e" not in words(page)
    assert "\x1b" not in words(page)


def test_the_csv_has_each_day_of_each_endpoint(anna: Client) -> None:
    (day,) = publish(DAY)
    endpoint_day(DAY, FORMULA, unknown=1)
    endpoint_day(DAY, "zeta")

    response = anna.get("/reports/endpoints.csv?days=7&to=2026-11-19")

    file = b"".join(response).decode()
    first, second = csv.DictReader(io.StringIO(file))
    assert response["Content-Disposition"] == (
        'attachment; filename="endpoints-2026-11-13-to-2026-11-19.csv"'
    )
    assert first["endpoint"] == f"'{FORMULA}"
    assert (second["day"], second["topic"]) == ("2026-11-19", "gateway/zeta")
    assert (second["calls"], second["longest_ms"], second["is_partial"]) == (
        *("20", "3012", "False"),
    )
    assert second["run"] == str(day.run_id)
    assert anna.get("/reports/endpoints.csv?from=soon").status_code == 422


@pytest.mark.parametrize(
    ("query", "remedy"),
    [("endpoint=a%00", "no stored text has"), ("from=soon", "send a day such as")],
)
def test_a_wrong_address_says_so_and_shows_the_usual_days(
    anna: Client, query: str, remedy: str
) -> None:
    publish(DAY)

    assert remedy in get(anna, f"/reports/endpoints?{query}", 422)
