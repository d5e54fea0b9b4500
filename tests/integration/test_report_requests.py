"""Requests for reports by hand: what is queued, audited and refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from apps.audit.models import Entry
from apps.core.actor import Actor
from apps.core.errors import Invalid, Refused
from apps.reports.models import Run
from apps.reports.services import report_requests
from tests.races import together

ANNA = Actor.user("anna")
TODAY = date(2026, 11, 20)
YESTERDAY = TODAY - timedelta(days=1)
AT_TWO = datetime(2026, 11, 20, 2, tzinfo=UTC)

pytestmark = pytest.mark.django_db(transaction=True)


def ask(first: date, last: date) -> Run:
    return report_requests.request(
        first_day=first, last_day=last, actor=ANNA, source="ui", now=AT_TWO
    )


def test_a_request_is_queued_and_audited() -> None:
    run = ask(YESTERDAY, YESTERDAY)

    entry = Entry.objects.get(subject=f"report:{run.pk}")

    assert (run.state, run.asked_by) == ("queued", "user:anna")
    assert (entry.action, entry.actor) == ("report.requested", "user:anna")
    assert entry.detail == {"from": "2026-11-19", "to": "2026-11-19"}


@pytest.mark.parametrize(
    ("first", "last", "field"),
    [
        (TODAY, TODAY, "to"),
        (YESTERDAY, TODAY + timedelta(days=9), "to"),
        (YESTERDAY, YESTERDAY - timedelta(days=1), "to"),
        (YESTERDAY - timedelta(days=366), YESTERDAY, "from"),
    ],
)
def test_days_that_cannot_be_reported_are_named(
    first: date, last: date, field: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        ask(first, last)

    assert refusal.value.field == field
    assert not Run.objects.exists()


def test_a_day_is_over_five_minutes_after_midnight() -> None:
    midnight = datetime(2026, 11, 20, tzinfo=UTC)

    assert report_requests.newest_over(midnight) == date(2026, 11, 18)
    assert report_requests.newest_over(midnight + timedelta(minutes=5)) == YESTERDAY


def test_two_unfinished_runs_never_share_a_day() -> None:
    first = ask(YESTERDAY - timedelta(days=3), YESTERDAY)

    with pytest.raises(Refused, match=f"run {first.pk} "):
        ask(YESTERDAY, YESTERDAY)
    ask(date(2026, 11, 1), date(2026, 11, 2))

    assert Run.objects.count() == 2
    assert Entry.objects.count() == 2


def test_of_concurrent_requests_for_a_day_one_succeeds() -> None:
    refused: list[Refused] = []

    def write(_: int) -> None:
        try:
            ask(YESTERDAY, YESTERDAY)
        except Refused as refusal:
            refused.append(refusal)

    together(8, write)

    assert (Run.objects.count(), len(refused)) == (1, 7)
