"""Paused guards are shown on the overview and the topic page."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.test import Client

from apps.brokers.models import Topic
from apps.capture.intake import guard_heartbeats
from apps.dashboard.selectors import consumer_guard_states as selectors
from tests.failure_report_builders import GUARD, guard_word
from tests.integration.dashboard.pages import get

pytestmark = pytest.mark.django_db

WHY = "50 failures in a row"
HOSTILE = "</td><script>alert(1)</script>\u202e\x00\ud800" + "A" * 400


def tell(now: datetime, **changes: object) -> Topic:
    """Send the heartbeat of a guard; each call is another process."""
    word = guard_word(now, **changes)
    (answer,) = guard_heartbeats.record_heartbeats(
        members=[word], principal=GUARD, now=now
    )
    assert answer.status == "created", answer
    return Topic.objects.get(name=word["topic"])


def pages(client: Client, topic: Topic) -> list[str]:
    return [get(client, path) for path in ("/", f"/topics/{topic.pk}")]


def test_a_paused_guard_is_named_on_the_overview_and_on_its_topics_page(
    anna: Client, now: datetime
) -> None:
    topic = tell(now, state="paused", detail=WHY)
    tell(now, client_name="billing-2", host="web-4")

    result = pages(anna, topic)

    facts = ("billing-1", "web-3", "2026.11.20", WHY, f"{now:%Y-%m-%dT%H:%M:%S}Z")
    assert [part for page in result for part in facts if part not in page] == []
    assert ["is paused since" in page for page in result] == [True, True]
    assert "1 of 2 run" in result[0]
    assert f'href="/topics/{topic.pk}#guards"' in result[0]
    assert "billing-2" not in result[0]


def test_guards_that_run_raise_no_alarm(anna: Client, now: datetime) -> None:
    topic = tell(now)

    overview, page = pages(anna, topic)

    assert "1 of 1 run" in overview
    assert "is paused since" not in overview
    assert "Running" in page


def test_a_guard_without_heartbeats_is_silent_and_not_paused(
    anna: Client, now: datetime
) -> None:
    topic = tell(now - 2 * guard_heartbeats.GUARD_LIVES, state="paused", detail=WHY)

    overview, page = pages(anna, topic)

    assert "is paused since" not in overview
    assert "0 of 1 run" in overview
    assert "Silent" in page


def test_a_guard_that_announced_its_stop_is_not_listed(
    anna: Client, now: datetime
) -> None:
    topic = tell(now - 2 * guard_heartbeats.GUARD_LIVES, state="stopping")

    overview, page = pages(anna, topic)

    assert " run</span>" not in overview
    assert "No guard yet" in page


@pytest.mark.parametrize(
    ("successor", "summary"),
    [
        ({}, "1 of 1 run"),
        ({"host": "web-4"}, "1 of 2 run"),
        ({"client_name": "billing-2"}, "1 of 2 run"),
        ({"consumer_group": "audit"}, "1 of 2 run"),
    ],
)
def test_a_silent_guard_is_hidden_only_by_a_successor_of_its_name(
    anna: Client, now: datetime, successor: dict[str, object], summary: str
) -> None:
    tell(now - 2 * guard_heartbeats.GUARD_LIVES)
    topic = tell(now, **successor)

    overview, page = pages(anna, topic)

    assert summary in overview
    assert ("Silent" in page) is bool(successor)


def test_idle_guards_come_first_and_the_rest_is_counted(
    anna: Client, now: datetime
) -> None:
    for place in range(7):
        state = "paused" if place % 2 else "holding"
        tell(now, client_name=f"z-{place}", state=state)
    topic = tell(now, client_name="a")

    overview, page = pages(anna, topic)
    result = selectors.of_topic(topic, now=now)

    assert "And 2 other guards" in overview
    assert [row.guard.client_name for row in result.rows][-1] == "a"
    assert page.index("z-0") < page.index('"strong">a<')


def test_nobody_sees_the_guards_of_other_topics(now: datetime) -> None:
    tell(now, state="paused")

    visible = Topic.objects.matching(("orders.eu",))
    result = selectors.idle(visible, now=now)

    assert (result.guards, result.number) == ([], 0)
    assert selectors.statuses(visible, now=now) == []


def test_an_installation_without_guards_says_how_they_come(
    anna: Client, now: datetime
) -> None:
    topic = tell(now - 2 * guard_heartbeats.GUARD_LIVES, state="stopping")

    overview, page = pages(anna, topic)

    assert "Guards" not in overview
    assert "Consumers that use the SDK send a heartbeat" in page


def test_no_text_of_a_guard_breaks_a_page(anna: Client, now: datetime) -> None:
    strange = "\u202e\u2066" + "W" * 250
    topic = tell(now, state="paused", detail=HOSTILE, host=strange, client_name=strange)

    result = pages(anna, topic)

    assert all("<script>alert" not in page for page in result)
    assert all("\u202e" not in page for page in result)


def test_a_page_asks_as_often_for_many_guards_as_for_one(
    anna: Client, now: datetime, django_assert_max_num_queries: object
) -> None:
    topic = tell(now, state="paused")
    for place in range(60):
        tell(now, client_name=f"billing-{place}", state="paused")

    with django_assert_max_num_queries(5):  # type: ignore[operator]
        selectors.of_topic(topic, now=now)
        selectors.idle(Topic.objects.all(), now=now)
        selectors.statuses(Topic.objects.all(), now=now)

    assert "50 of 61" in get(anna, f"/topics/{topic.pk}")
