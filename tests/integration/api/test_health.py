"""/healthz and /readyz: open to all, quick, and silent about addresses."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from apps.api import health
from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane
from apps.core import clock
from apps.core.postgres_session_usage import SPARE
from apps.redelivery.models import EndpointActivity
from apps.triage.services import orphaned_operations_and_expired_rows
from tests.integration.api.schema_checking_client import program
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint
from tests.postgres_connection_limit_and_lock_waits import sessions_left
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

# The promised time, on a machine without other load.
THREE_SECONDS = 3.0 if os.environ.get("SOAK") else 20.0


@pytest.fixture(autouse=True)
def patient_probes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a busy machine take its time, where nothing hangs."""
    if "silent_port" not in request.fixturenames:
        monkeypatch.setattr(health, "TIMEOUT_SECONDS", 60.0)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Give a port that accepts every connection and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Give a port without a listener, which no other program gets meanwhile."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield server.getsockname()[1]


def ready() -> tuple[int, dict[str, Any]]:
    """Ask /readyz, and check that it answers within three seconds."""
    began = time.monotonic()
    response = Client().get("/readyz")
    assert time.monotonic() - began < THREE_SECONDS
    assert "127.0.0.1" not in response.content.decode()
    assert response["Cache-Control"].startswith("max-age=0")
    data = json.loads(response.content)
    assert data["status"] == ("ready" if response.status_code == 200 else "not ready")
    return response.status_code, data["dependencies"]


@pytest.mark.usefixtures("orders")
def test_a_stranger_learns_no_name_of_a_broker() -> None:
    Broker.objects.update(name="secret-project")

    response = Client().get("/readyz")

    assert response.json()["dependencies"]["brokers"] == {"unknown": 1}
    assert "secret-project" not in response.content.decode()


def say(topic: Topic, state: str, seen_at: datetime) -> None:
    Lane.objects.filter(topic=topic).update(state=state, seen_at=seen_at)


def test_healthz_answers_alive_and_nothing_more() -> None:
    response = Client().get("/healthz")

    assert (response.status_code, response.json()) == (200, {"status": "alive"})


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_post_to_healthz_or_readyz_is_a_405(path: str) -> None:
    assert Client().post(path).status_code == 405
    assert Client().head(path).status_code == 200


def test_readyz_is_200_while_all_dependencies_are_up(
    orders: Topic, now: datetime
) -> None:
    say(orders, "running", now)

    status, data = ready()
    sessions = data.pop("sessions")

    assert sessions["state"] == "up"
    assert 1 <= sessions["used"] < sessions["most"]
    assert "remedy" not in sessions
    assert (status, data) == (
        200,
        {
            "postgres": "up",
            "migrations": "up",
            "lanes": "up",
            "sender": "up",
            "outboxes": {},
            "brokers": {"up": 1},
            "worker": "up",
            "celery_broker": "up",
        },
    )


def test_a_silent_worker_is_away_and_the_web_stays_ready(
    orders: Topic, now: datetime
) -> None:
    orphaned_operations_and_expired_rows.beat(now=now - timedelta(seconds=11))

    status, data = ready()

    assert (status, data["worker"]) == (200, "away")


def test_a_silent_lane_is_away_and_its_broker_unknown(
    orders: Topic, now: datetime
) -> None:
    say(orders, "running", now - timedelta(seconds=31))

    status, data = ready()

    assert (status, data["lanes"], data["brokers"]) == (
        200,
        "away",
        {"unknown": 1},
    )


def test_a_lane_that_never_ran_is_away(orders: Topic) -> None:
    assert ready()[1]["lanes"] == "away"


def test_an_endpoint_without_a_living_sender_is_shown_and_the_web_stays_ready() -> None:
    stock = endpoint()
    heard = EndpointActivity.objects.filter(endpoint=stock)
    states = [ready()[1]["sender"]]
    for seconds in (10, 21):
        heard.update(heard_at=clock.now() - timedelta(seconds=seconds))
        states.append(ready()[1]["sender"])
    type(stock).objects.update(is_enabled=False)

    status, data = ready()

    assert states == ["away", "up", "away"]
    assert (status, data["sender"]) == (200, "up")


def test_a_broker_that_a_lane_cannot_reach_is_away(
    orders: Topic, now: datetime
) -> None:
    say(orders, "away", now)

    status, data = ready()

    assert (status, data["lanes"], data["brokers"]) == (200, "up", {"away": 1})


def test_a_broker_has_the_worse_state_of_its_two_lanes(
    orders: Topic, now: datetime
) -> None:
    say(orders, "away", now)
    other = Topic.objects.create(
        name="b", native_name="b", broker=orders.broker, dead_letter_queue="b-poison"
    )
    Lane.objects.create(topic=other, state="running", seen_at=now)

    assert ready()[1]["brokers"] == {"away": 1}


def test_a_celery_broker_that_is_away_is_shown_and_is_no_503(
    monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    url = f"redis://127.0.0.1:{closed_port}/0"
    monkeypatch.setattr(current_app.conf, "broker_write_url", url)

    status, data = ready()

    assert (status, data["celery_broker"], data["postgres"]) == (200, "away", "up")


def test_a_celery_broker_that_hangs_does_not_delay_the_answer(
    monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    url = f"redis://127.0.0.1:{silent_port}/0"
    monkeypatch.setattr(current_app.conf, "broker_write_url", url)

    assert ready()[1]["celery_broker"] == "away"
    _all_answered()


def test_postgres_away_is_a_503(
    monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(connections.settings["default"], "PORT", str(closed_port))
        status, data = ready()

    assert (status, data["postgres"], data["migrations"]) == (503, "away", "unknown")
    assert data["celery_broker"] == "up"
    assert ready()[0] == 200


def test_a_postgres_that_hangs_is_a_503_in_time(
    monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(connections.settings["default"], "PORT", str(silent_port))
        patched.setitem(
            connections.settings["default"], "OPTIONS", {"connect_timeout": 3}
        )
        status, data = ready()
        _all_answered()

    assert (status, data["postgres"]) == (503, "away")


def test_a_shortage_of_sessions_is_shown_with_the_remedy_and_is_no_503() -> None:
    with sessions_left(SPARE - 2) as most:
        status, data = ready()

    sessions = data["sessions"]
    assert (status, sessions["state"], sessions["most"]) == (200, "short", most)
    assert most - SPARE < sessions["used"] <= most
    assert sessions["remedy"] == (
        "raise the connection limit of the database, or run fewer processes"
    )


def test_a_migration_that_is_pending_is_a_503() -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("audit", "0001_initial")
    try:
        status, data = ready()
    finally:
        recorder.record_applied("audit", "0001_initial")

    assert (status, data["postgres"], data["migrations"]) == (503, "up", "behind")


def test_a_probe_that_fails_is_a_dependency_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "_celery_broker", lambda: 1 // 0)

    _, data = ready()

    assert data["celery_broker"] == "away"
    assert "a probe of /readyz failed" in caplog.text


def test_hanging_probes_do_not_pile_up() -> None:
    with ExitStack() as stack:
        hanging = threading.Event()
        stack.callback(hanging.set)
        for _ in range(health.MOST_PROBES):
            assert health._probes.start(hanging.wait)
        threads = threading.active_count()

        status, data = ready()

        assert (status, data["postgres"], data["celery_broker"]) == (
            503,
            "away",
            "away",
        )
        assert threading.active_count() <= threads


def test_a_call_while_postgres_is_away_is_a_503_without_its_address(
    monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    caller = program()
    connection.close()
    with monkeypatch.context() as patched:
        patched.setitem(connections.settings["default"], "PORT", str(closed_port))
        replies = [caller.get("poisons"), caller.post("failures", {"failures": []})]
    connection.close()

    assert [each.status for each in replies] == [503, 503]
    assert replies[0].response["Retry-After"] == "5"
    assert str(closed_port) not in replies[0].response.content.decode()
    assert caller.get("poisons").status == 200


def _all_answered() -> None:
    """Wait until no probe of this test is still running."""
    wait_until(lambda: all(thread.name != "readyz" for thread in threading.enumerate()))
