"""The notice after a drop that offers to undo it, without scripts."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.dashboard.undo_offer import OFFERED_FOR
from apps.poison.models import Poison
from apps.team.models import User
from apps.team.rights import Role
from apps.triage.models import Operation
from apps.triage.operation_states import UNDO_WINDOW
from tests.failure_report_builders import poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.page_forms import form_on
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.test_operation_preview_confirm_undo import (
    confirm,
    ids,
    look,
    run,
)

pytestmark = pytest.mark.django_db(transaction=True)

SECOND = timedelta(seconds=1)
HTMX = {"HX-Request": "true"}
UNDO = "Undo (29 days left)"


def dropped(client: Client, now: datetime, number: int = 1) -> Operation:
    """Drop messages as a person does, up to the end of the operation."""
    operation, _ = look(client, "drop", ids=ids(*poisons(now, number)))
    confirm(client, operation)
    run(operation)
    return operation


def ended(operation: Operation, moment: datetime) -> None:
    """Let the operation have ended at another moment."""
    Operation.objects.filter(pk=operation.pk).update(finished_at=moment)


def test_pages_after_a_drop_offer_to_undo_it_with_the_days_left(
    anna: Client, now: datetime
) -> None:
    before = get(anna, "/messages")
    operation = dropped(anna, now, 2)
    problem = Poison.objects.values_list("problem_id", flat=True).first()

    after = [
        get(anna, path)
        for path in ("/messages", "/problems", f"/problems/{problem}", "/operations")
    ]

    assert "Undo (" not in before
    for page in after:
        notice = page.partition('<div id="toasts"')[2].partition("<main")[0]
        assert f"Dropped 2 messages {UNDO} Dismiss" in words(notice)
        assert f'href="/operations/{operation.pk}"' in notice
        assert 'role="status"' in notice


def test_a_poll_brings_the_offer_once_the_drop_has_ended(
    anna: Client, now: datetime
) -> None:
    operation, _ = look(anna, "drop", ids=ids(*poisons(now, 2)))
    confirm(anna, operation)

    meanwhile = anna.get("/messages", headers=HTMX).content.decode()
    run(operation)
    poll = anna.get("/messages", headers=HTMX).content.decode()

    assert "Undo (" not in meanwhile
    assert '<div id="undo-offer" hx-swap-oob="outerMorph">' in poll
    assert UNDO in poll


def test_the_offer_undoes_the_drop_and_is_then_gone(
    anna: Client, now: datetime
) -> None:
    dropped(anna, now, 2)

    undone = form_on(anna.get("/messages"), button=UNDO).press(anna)
    run(Operation.objects.latest("pk"))

    assert undone.status_code == 302
    assert Poison.objects.open().count() == 2
    assert "Undo (" not in get(anna, "/messages")


@pytest.mark.parametrize(
    ("headers", "status"), [({}, 302), (HTMX, 200)], ids=["without a script", "htmx"]
)
def test_a_dismissed_offer_is_gone_and_the_drop_can_still_be_undone(
    anna: Client, now: datetime, headers: dict[str, str], status: int
) -> None:
    operation = dropped(anna, now)
    form = form_on(anna.get("/messages?q=topic:orders"), button="Dismiss")

    answer = anna.post(form.action, form.values, headers=headers)

    assert answer.status_code == status
    assert answer.get("Location") in (None, "/messages?q=topic:orders")
    assert "Undo (" not in answer.content.decode() + get(anna, "/messages")
    assert "Undo: restore 1 message" in get(anna, f"/operations/{operation.pk}")


def test_the_offer_ends_after_some_minutes(anna: Client, now: datetime) -> None:
    operation = dropped(anna, now)

    ended(operation, now - OFFERED_FOR + 60 * SECOND)
    before = get(anna, "/messages")
    ended(operation, now - OFFERED_FOR - SECOND)
    after = get(anna, "/messages")

    assert "Undo (" in before
    assert "Undo (" not in after


def test_only_the_newest_drop_is_offered(anna: Client, now: datetime) -> None:
    operations = [dropped(anna, now) for _ in range(2)]

    page = get(anna, "/messages")

    offered = [f"/operations/{each.pk}/undo" for each in operations]
    assert [f'"{action}"' in page for action in offered] == [False, True]
    assert page.count('aria-keyshortcuts="u"') == 1


def test_a_drop_that_skipped_everything_is_not_offered(
    anna: Client, now: datetime
) -> None:
    chosen = poisons(now, 2)
    first, _ = look(anna, "drop", ids=ids(*chosen))
    second, _ = look(anna, "drop", ids=ids(*chosen))
    confirm(anna, second)
    Operation.objects.filter(pk=first.pk).update(
        state="done", confirmed_at=now, finished_at=now, reason="a test"
    )
    session = anna.session
    session["undo_offer"] = first.pk
    session.save()

    assert "Undo (" not in get(anna, "/messages")


def test_the_page_of_a_drop_has_its_own_button_and_no_notice(
    anna: Client, now: datetime
) -> None:
    operation = dropped(anna, now)

    page = get(anna, f"/operations/{operation.pk}")

    assert "Undo: restore 1 message" in page
    assert words(page).count("29 days left") == 2
    assert "Undo (" not in page
    assert page.count('aria-keyshortcuts="u"') == 1


def test_nobody_else_is_offered_the_undo(
    anna: Client, sign_in: SignIn, now: datetime
) -> None:
    dropped(anna, now)
    boris = sign_in(Role.ADMIN)

    assert "Undo (" not in get(boris, "/messages")


def test_a_person_who_became_a_viewer_is_offered_no_undo(
    anna: Client, now: datetime
) -> None:
    dropped(anna, now)

    User.objects.update(role=Role.VIEWER)

    assert "Undo (" not in get(anna, "/messages")


def test_an_offer_costs_two_statements_and_nothing_without_a_drop(
    anna: Client, now: datetime
) -> None:
    poisons(now, 1)
    get(anna, "/skips")
    with CaptureQueriesContext(connection) as before:
        get(anna, "/skips")
    dropped(anna, now)
    with CaptureQueriesContext(connection) as after:
        get(anna, "/skips")

    assert len(after) - len(before) == 2


def test_the_page_of_a_drop_says_until_when_it_can_be_undone(
    anna: Client, now: datetime
) -> None:
    operation = dropped(anna, now)
    path = f"/operations/{operation.pk}"

    ended(operation, now - UNDO_WINDOW + timedelta(days=1, seconds=60))
    day_before = words(get(anna, path))
    ended(operation, now - UNDO_WINDOW + 60 * SECOND)
    last_day = words(get(anna, path))
    ended(operation, now - UNDO_WINDOW - SECOND)
    too_late = get(anna, path)
    refused = anna.post(f"{path}/undo")

    assert "(1 day left)" in day_before
    assert "(less than a day left)" in last_day
    assert "Undo: restore" not in too_late
    assert "was possible until" in words(too_late)
    assert "/messages?q=is%3Adropped" in too_late
    assert refused.status_code == 409
    assert "search for is:dropped, and restore them" in words(refused.content.decode())
    assert Poison.objects.open().count() == 0


def test_the_preview_and_help_say_how_long_a_drop_can_be_undone(
    anna: Client, now: datetime
) -> None:
    _, page = look(anna, "drop", ids=ids(*poisons(now, 1)))

    days = f"undone for {UNDO_WINDOW.days} days"
    assert days in words(page)
    assert days in words(get(anna, "/help"))
