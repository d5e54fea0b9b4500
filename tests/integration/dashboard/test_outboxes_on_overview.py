"""The overview names sick outboxes, and outboxes with quarantined rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core.actor import Actor
from apps.dashboard.selectors import outboxes_in_need
from apps.outbox.models import SWEEPER_LIVES, Outbox, OutboxActivity
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeper_state_for_pages import state_of
from apps.team.rights import Principal, Role, Scope
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.test_counts_that_time_out import HINT, slow
from tests.integration.dashboard.test_overview import HOSTILE_TEXT
from tests.integration.outbox.conftest import broker_address
from tests.integration.outbox.outbox_builders import outbox_at

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("broker")]

__all__ = ["broker_address"]

URL = "postgresql://sweeper:sesame@127.0.0.1:1/shop"
EVERYONE = Principal(actor=Actor("user:anna"), scopes=frozenset(Scope))


def noted(now: datetime, name: str = "shop", **note: Any) -> Outbox:
    """Register an outbox whose sweeper has noted this just now."""
    outbox = outbox_at(f"{URL}_{name}", name)
    values = {"state": SweeperState.SWEEPING.value, "noted_at": now} | note
    OutboxActivity.objects.filter(outbox=outbox).update(**values)
    return Outbox.objects.select_related("activity").get(pk=outbox.pk)


def strip(page: str) -> str:
    """Return the red strip above all; "" without one."""
    _, _, behind = page.partition('<section class="strip"')
    return words(behind.partition("</section>")[0])


@pytest.mark.parametrize(
    "state",
    [
        (SweeperState.BROKEN, "Failing", "failed to mark: deadlock"),
        (SweeperState.UNREACHABLE, "Database away", "connection refused"),
    ],
    ids=["broken", "unreachable"],
)
def test_a_sick_outbox_is_above_all_with_its_link_and_what_waits(
    anna: Client, now: datetime, state: tuple[SweeperState, str, str]
) -> None:
    noted_state, pill, detail = state
    shop = noted(
        now,
        state=noted_state.value,
        detail=f"{detail}.",
        counted_at=now,
        waiting=12_345,
        oldest_at=now - timedelta(minutes=7),
    )

    page = get(anna, "/")

    assert f'href="/outboxes/{shop.pk}"' in page
    assert (
        f"{pill} Outbox shop {detail}; 12,345 rows wait, the oldest was written 7m ago"
        in strip(page)
    )
    assert "sesame" not in page


def test_an_outbox_that_no_sweeper_empties_is_silent(
    anna: Client, now: datetime
) -> None:
    minutes = [now - timedelta(minutes=number) for number in range(10)]
    noted(now, noted_at=minutes[1])
    noted(now, "second", noted_at=None)
    noted(now, "third", noted_at=minutes[1], waiting=1, oldest_at=minutes[7])

    alarms = strip(get(anna, "/"))

    assert "Outbox shop the last note of its sweeper was 1m ago" in alarms
    assert "Outbox second its sweeper notes nothing yet" in alarms
    assert (
        "Outbox third its sweeper notes nothing; 1 row waits, the oldest was written"
        " 7m ago" in alarms
    )


def test_counts_of_a_database_that_is_away_are_of_their_time(
    anna: Client, now: datetime
) -> None:
    away = {"state": SweeperState.UNREACHABLE.value, "detail": "refused"}
    earlier = now - timedelta(minutes=12)
    oldest = now - timedelta(minutes=20)
    noted(now, **away, counted_at=earlier, waiting=9, oldest_at=oldest)
    noted(now, "second", **away, counted_at=earlier)
    noted(now, "third", **away)

    alarms = strip(get(anna, "/"))

    assert (
        f"Outbox shop refused; 9 rows waited at {earlier:%Y-%m-%d %H:%M} UTC, the"
        " oldest was written 20m ago" in alarms
    )
    assert "Outbox second refused; no row waited at the last count, 12m ago" in alarms
    assert "Outbox third refused; what waits was not counted yet" in alarms


def test_an_outbox_whose_database_never_answered_is_not_called_empty(
    anna: Client, now: datetime
) -> None:
    noted(now, state=SweeperState.UNREACHABLE.value, detail="connection refused")

    assert "row" not in strip(get(anna, "/"))


def test_an_outbox_that_was_just_added_is_not_silent_yet(
    anna: Client, now: datetime
) -> None:
    noted(now, noted_at=None)
    Outbox.objects.update(created_at=now)

    assert strip(get(anna, "/")) == ""


@pytest.mark.parametrize("state", SweeperState)
@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("seconds", [1, SWEEPER_LIVES.total_seconds() + 1])
def test_alarms_are_the_states_that_its_page_calls_sick(
    now: datetime, state: SweeperState, is_paused: bool, seconds: float
) -> None:
    noted_at = now - timedelta(seconds=seconds)
    outbox = noted(now, state=state.value, noted_at=noted_at)
    Outbox.objects.update(is_paused=is_paused)
    outbox.refresh_from_db()

    [status] = outboxes_in_need.find(EVERYONE, now=now).statuses
    alarms = outboxes_in_need.find(EVERYONE, now=now).alarms

    state_on_page = state_of(outbox, now=now)
    is_sick = state_on_page in {"broken", "unreachable", "silent"}
    assert [each.state for each in alarms] == [state_on_page] * is_sick
    expected = "stopped" if is_sick else "resting" if is_paused else "up"
    assert status.state == expected


def test_health_counts_the_outboxes_that_are_swept(anna: Client, now: datetime) -> None:
    assert "Outboxes" not in words(get(anna, "/")).partition("Health")[2]
    noted(now)
    noted(now, "second", state=SweeperState.BROKEN.value)
    noted(now, "third")
    Outbox.objects.filter(name="third").update(is_paused=True)

    health = words(get(anna, "/")).partition("Health")[2]

    assert "Outboxes 1 of 3 swept, 1 paused" in health


def test_quarantined_rows_wait_for_a_decision(anna: Client, now: datetime) -> None:
    shop = noted(now, quarantined=2)
    noted(now, "second", quarantined=1)
    noted(now, "third")

    page = get(anna, "/")

    assert f'href="/outboxes/{shop.pk}/rows?state=quarantined"' in page
    text = words(page)
    assert "2 rows of the outbox shop are quarantined, and wait for your" in text
    assert "1 row of the outbox second is quarantined, and waits for your" in text
    assert "outbox third" not in text


def test_many_outboxes_cost_no_more_statements_than_one(
    anna: Client, now: datetime
) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            get(anna, "/")
        return len(queries)

    sick: dict[str, Any] = {"state": SweeperState.BROKEN.value, "quarantined": 3}
    noted(now, **sick)
    get(anna, "/")  # stores the visit
    few = statements()
    for number in range(2, 10):
        noted(now, f"shop-{number}", **sick)

    assert statements() == few
    page = words(get(anna, "/"))
    assert page.count("Outbox shop") == 5
    assert "4 more are on the page of outboxes" in page
    assert "4 other outboxes have quarantined rows" in page


def test_outboxes_that_take_too_long_are_missing_and_the_page_is_there(
    anna: Client, now: datetime
) -> None:
    noted(now, state=SweeperState.BROKEN.value)

    with slow(lambda _: True):
        page = get(anna, "/")

    assert f"The outboxes took too long to look at: {HINT}" in page
    assert strip(page) == ""


@pytest.mark.parametrize(
    ("scopes", "topics"),
    [({Scope.PROBLEMS_READ}, ()), (set(Scope), ("orders",))],
    ids=["without the right", "of other topics"],
)
def test_who_may_see_no_outbox_hears_nothing_of_them(
    now: datetime, scopes: set[Scope], topics: tuple[str, ...]
) -> None:
    noted(now, state=SweeperState.BROKEN.value, quarantined=3)
    principal = Principal(
        actor=Actor.key("ci"), scopes=frozenset(scopes), topics=topics
    )

    outboxes = outboxes_in_need.find(principal, now=now)

    assert outboxes == outboxes_in_need.OutboxesInNeed()


def test_no_text_of_an_error_breaks_the_page(sign_in: SignIn, now: datetime) -> None:
    text = HOSTILE_TEXT.replace("\0", "")
    noted(now, state=SweeperState.BROKEN.value, detail=text, waiting=3, oldest_at=now)

    page = get(sign_in(Role.VIEWER), "/")

    assert "<script>alert" not in page
    # A long error does not hide what waits.
    assert "3 rows wait, the oldest was written" in words(page)
