"""What one consumer learns of a topic that replays, the others know within a second."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.capture.models import Counter as Counted
from apps.capture.models import Guard
from apps.core import clock
from apps.core.actor import Actor
from apps.poison.models import Failure, Poison, Redrive, Skip
from apps.team import services as team
from apps.team.rights import Role
from tests.acceptance.remote_controlled_consumer import Remote, guarded, message
from tests.acceptance.web_server_process import Web, api_key
from tests.skip_builders_and_list_mirror import added
from tests.triage_operation_runner import redriven
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

AWAY_SECONDS = 60.0 if os.environ.get("SOAK") else 3.0
TOPIC, GROUP = "orders", "billing"
Start = Callable[..., AbstractContextManager[Remote]]


@pytest.fixture
def start(web: Web, tmp_path: Path) -> Start:
    common: dict[str, Any] = {"topic": TOPIC, "consumer_group": GROUP, "url": web.url}
    return partial(guarded, tmp_path / "journal", api_key=api_key(), **common)


def test_other_consumers_skip_a_poison_and_handle_its_requeued_copy(
    start: Start,
) -> None:
    at_once = partial(start, suspect=False)
    with at_once(client_name="one") as one, at_once(client_name="two") as two:
        before = [one.handle(message(1)), two.handle(message(1))]
        poisoned = one.handle(message(2, bad=True))
        requeued = one_more_time(Poison.objects.get())
        handled = two.handle(requeued)
        wait_until(lambda: Redrive.objects.get().outcome == "confirmed")
        wait_until(lambda: two.health()["skips"])
        skipped = two.handle(message(2, bad=True))
        with start(client_name="three") as three:
            later = three.handle(message(1), message(2, bad=True), message(3))

    assert before == [["handled"], ["handled"]]
    assert (poisoned, handled, skipped) == (["poisoned"], ["handled"], ["skipped"])
    assert later == ["handled", "skipped", "handled"]
    assert Failure.objects.count() == 1


def one_more_time(poison: Poison) -> dict[str, Any]:
    """Give the message as a requeue brings it: its bytes, a new place, our header."""
    token = redriven(poison, clock.now())
    return {
        "bookmark": "b-2-again",
        "seq": 1_000,
        "body": "good",
        "headers": {"x-poisonweb-redrive": token},
    }


def test_a_sick_consumer_stops_and_imposes_nothing_on_the_others(
    start: Start, web: Web
) -> None:
    messages = [message(n) for n in range(200)]
    with ExitStack() as town:
        sick = town.enter_context(
            start(client_name="sick", version="3", sick=True, hold_for=0.1)
        )
        outcomes = Counter(sick.handle(*messages[:60]))
        others = [
            town.enter_context(start(client_name=f"healthy-{n}", version="2"))
            for n in range(9)
        ]
        # A skip that is younger than any wrong one: those would have come with it.
        added(clock.now(), "marker")
        wait_until(lambda: all(other.health()["skips"] for other in others))
        theirs = [other.handle(*messages) for other in others]
        health = sick.health()
        wait_until(Guard.objects.filter(state="paused").exists)
        page = overview()

    assert outcomes["poisoned"] <= 50
    assert outcomes["release"] == 60 - outcomes["poisoned"]
    assert [Counter(each) for each in theirs] == [Counter({"handled": 200})] * 9
    in_force = Skip.objects.in_force(clock.now())
    assert [bytes(skip.value) for skip in in_force] == [b"marker"]
    assert "paused" in str(health)
    assert "sick" in page
    assert "paused" in page
    assert str(health["host"]) in page


def overview() -> str:
    """Read the Overview as an admin does."""
    user = team.create_user(
        username="anna",
        password="correct horse battery staple",
        role=Role.ADMIN,
        reads_bodies=False,
        actor=Actor.system("test"),
        now=clock.now(),
    )
    client = Client()
    client.force_login(user)
    return client.get("/").content.decode()


def test_a_server_that_is_away_for_a_while_is_waited_for(
    start: Start, web: Web
) -> None:
    """Nothing is lost or doubled; no consumer stops for good, or starts over."""
    number, bad_ones = 600, range(5, 600, 60)
    with start(client_name="one", hold_for=AWAY_SECONDS + 60.0) as one:
        one.handle(*(message(n) for n in range(5)))
        one.begin(message(n, bad=n in bad_ones) for n in range(5, number))
        wait_until(Poison.objects.exists)
        web.stop()
        # The time away is what is tested.
        time.sleep(AWAY_SECONDS)
        web.start()
        outcomes = Counter(one.end())

    poisons = Poison.objects.all()
    assert outcomes == {
        "handled": number - 5 - len(bad_ones),
        "poisoned": len(bad_ones),
    }
    assert {bytes(poison.bookmark) for poison in poisons} == {
        b"b-%d" % n for n in bad_ones
    }
    assert {poison.failures for poison in poisons} == {1}
    assert counted() == (number - len(bad_ones), len(bad_ones))


def counted() -> tuple[int, int]:
    rows = Counted.objects.values_list("handled", "failed")
    return sum(handled for handled, _ in rows), sum(failed for _, failed in rows)
