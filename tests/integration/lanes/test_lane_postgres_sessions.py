"""Many lanes need few sessions of Postgres."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

import pytest
from django.conf import settings
from django.db import OperationalError, connection, connections, transaction
from pytest_django import Settings
from redis import Redis

from apps.brokers.adapter_contract import (
    Delivered,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.models import Broker, Topic
from apps.capture.management.commands.lanes import MOST_SESSIONS
from apps.capture.models import HeldDeadLetter, Lane, LaneState, Mode, Sample
from apps.core import advisory_locks, clock
from apps.core.postgres_connections import borrow, share_sessions
from apps.poison.models import Poison
from apps.reports import spark_job_process
from tests import in_memory_queue_broker
from tests.in_memory_queue_broker import SENT, Queues, adapted
from tests.lane_crash_simulation import serving, topic_on_queues
from tests.postgres_connection_limit_and_lock_waits import sessions_limited
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

P = ParamSpec("P")
R = TypeVar("R")

SOAK = bool(os.environ.get("SOAK"))
LANES = 300 if SOAK else 40
# Of one lane, while it gets no session: a dozen last a minute.
ATTEMPTS = 12 if SOAK else 2
# What is promised, where nothing else works beside it.
SIXTEEN_SECONDS = 16.0 if SOAK else 60.0


@pytest.fixture
def broker() -> Iterator[Queues]:
    queues_ = Queues()
    with adapted(queues_):
        yield queues_


@contextmanager
def lanes_process(output: IO[bytes] | None = None) -> Iterator[None]:
    """Run `manage.py lanes` as a process, on the database of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_URL", spark_job_process.database_url())
        process = subprocess.Popen(
            [sys.executable, "manage.py", "lanes"],
            cwd=settings.BASE_DIR,
            stderr=output,
        )
    with process:
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def sessions_of_lanes() -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT application_name, count(*) FROM pg_stat_activity"
            " WHERE datname = current_database()"
            "   AND application_name LIKE 'poisonweb lane%'"
            " GROUP BY application_name"
        )
        return dict(cursor.fetchall())


def test_many_lanes_need_few_sessions(redis_url: str, stream: Redis) -> None:
    redis = Broker.objects.create(name="redis", kind="redis_streams", url=redis_url)
    topics = Topic.objects.bulk_create(
        Topic(
            name=f"t{n}", native_name=f"t{n}", broker=redis, dead_letter_queue=f"d{n}"
        )
        for n in range(LANES)
    )
    modes = [(Mode.OBSERVE, False), (Mode.OBSERVE, True), (Mode.CAPTURE, False)]
    for number, topic in enumerate(topics):
        mode, paused = modes[number % 3]
        Lane.objects.create(topic=topic, mode=mode.value, paused=paused)
        stream.xadd(f"d{number}", {"body": b"x"})
    captured, observed = LANES // 3, len(range(0, LANES, 3))
    counts: list[dict[str, int]] = []

    def all_work() -> bool:
        counts.append(sessions_of_lanes())
        settled = Lane.objects.filter(state__in=[LaneState.RUNNING, LaneState.PAUSED])
        return settled.count() == LANES

    with lanes_process():
        wait_until(all_work, seconds=240)
        wait_until(lambda: Poison.objects.count() == captured)
        wait_until(lambda: Sample.objects.count() == observed)
        names = advisory_locks.names_locked([f"lane:{topic.pk}" for topic in topics])
        counts.append(sessions_of_lanes())

    assert len(names) == LANES
    assert counts[-1]["poisonweb lane locks"] == 1
    assert (
        1 <= max(count.get("poisonweb lanes", 0) for count in counts) <= MOST_SESSIONS
    )
    assert (
        advisory_locks.names_locked([f"lane:{topic.pk}" for topic in topics]) == set()
    )


def test_lanes_whose_sessions_all_ended_come_back(
    orders: Topic, stream: Redis, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output, lanes_process(output):
        wait_until(lambda: Lane.objects.get().state == LaneState.RUNNING, seconds=120)
        with sessions_limited(1):  # which is ours
            end_sessions_of_lanes()
            stream.xadd("orders-poison", {"body": b"x"})
            wait_until(
                lambda: log.read_text().count("and cannot say so") >= ATTEMPTS,
                seconds=240,
                describe=log.read_text,
            )
            meanwhile = (sessions_of_lanes(), Poison.objects.count())
        wait_until(lambda: Poison.objects.count() == 1, seconds=SIXTEEN_SECONDS)

    assert meanwhile == ({}, 0)


def end_sessions_of_lanes() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database()"
            "   AND application_name LIKE 'poisonweb lane%'"
        )


@contextmanager
def noting_sessions() -> Iterator[dict[str, int]]:
    """Count the calls to the broker; fail if one holds a session meanwhile."""
    calls: dict[str, int] = {}
    holders: list[str] = []

    def noted(name: str, work: Callable[P, R]) -> Callable[P, R]:
        def note(*args: P.args, **kwargs: P.kwargs) -> R:
            calls[name] = calls.get(name, 0) + 1
            if connection.connection is not None:
                holders.append(name)
            return work(*args, **kwargs)

        return note

    with pytest.MonkeyPatch.context() as patch:
        for kind in (
            in_memory_queue_broker.Reader,
            in_memory_queue_broker.Admin,
            in_memory_queue_broker.Publisher,
        ):
            for name, work in vars(kind).items():
                if callable(work) and not name.startswith("_"):
                    label = f"{kind.__name__}.{name}"
                    patch.setattr(kind, name, noted(label, work))
        yield calls
    assert holders == []


@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
def test_no_lane_holds_a_session_while_it_asks_its_broker(
    broker: Queues, mode: Mode, extends: bool, settings: Settings
) -> None:
    settings.POISONWEB_BODY_LIMIT = 1_000
    broker.with_(extends=extends, delivered=True, peeks=True)
    broker.delivered = Delivered(total=7, at=clock.now(), since="a")
    topic = topic_on_queues(clock.now(), mode=mode)
    Lane.objects.update(delivered_total=3, delivered_since="a")
    Lane.objects.update(delivered_at=clock.now() - timedelta(minutes=5))

    def answer(message: Outbound) -> PublishOutcome:
        if message.body == b"refused":
            return PublishOutcome(kind=OutcomeKind.REFUSED, detail="too late")
        return SENT

    broker.answer = answer
    for body in (b"x", b"refused", b"x" * 1_001):
        broker.put(topic.dead_letter_queue, body)
    with share_sessions("test", most=2), noting_sessions() as calls, serving():
        if mode is Mode.OBSERVE:
            wait_until(borrow()(lambda: Sample.objects.count() == 3))
        else:
            wait_until(borrow()(lambda: Poison.objects.count() == 2))
            expected = 2 if mode is Mode.TEE else 1
            wait_until(borrow()(lambda: HeldDeadLetter.objects.count() == expected))
        wait_until(borrow()(lambda: Lane.objects.get().depth is not None))

    assert calls["Admin.depth"]
    assert calls["Admin.delivered"]
    assert ("Reader.acknowledge" in calls) == (mode is not Mode.OBSERVE)
    assert ("Publisher.publish" in calls) == (mode is Mode.TEE)


def is_ours() -> bool:
    """Take the only session, if the lanes return it in time."""
    with suppress(OperationalError):
        connection.ensure_connection()
    return connection.connection is not None


def is_running() -> bool:
    with suppress(OperationalError), borrow():
        return Lane.objects.get().state == LaneState.RUNNING
    return False


def is_captured() -> bool:
    with suppress(OperationalError), borrow():
        return Poison.objects.exists()
    return False


def test_lanes_that_get_no_session_at_their_start_wait_for_one(
    broker: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_on_queues(clock.now())
    broker.put(topic.dead_letter_queue, b"x")

    with share_sessions("test", most=1, timeout=0.3):
        wait_until(is_ours)
        with serving():
            wait_until(lambda: "the lanes wait for Postgres" in caplog.text)
            connection.close()
            wait_until(is_captured)

    assert "Traceback" not in caplog.text


def test_a_lane_that_gets_no_session_in_time_loses_nothing_and_comes_back(
    broker: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_on_queues(clock.now())

    with share_sessions("test", most=1, timeout=0.3), serving():
        wait_until(is_running)
        wait_until(is_ours)
        broker.put(topic.dead_letter_queue, b"x")
        wait_until(lambda: "gave us no session within 0.3 s" in caplog.text)
        connection.close()
        wait_until(is_captured)

    assert broker.contents(topic.dead_letter_queue) == []
    assert "Traceback" not in caplog.text


def test_a_thread_that_waits_too_long_for_a_session_gets_an_error() -> None:
    troubles: list[Exception] = []

    def want() -> None:
        try:
            with borrow():
                Topic.objects.exists()
        except OperationalError as trouble:
            troubles.append(trouble)

    with share_sessions("test", most=1, timeout=3.0):
        with borrow():
            Topic.objects.exists()
            other = threading.Thread(target=want)
            other.start()
            other.join()
        want()

    assert [str(trouble) for trouble in troubles] == [
        "Postgres gave us no session within 3 seconds"
    ]


def test_a_transaction_that_is_idle_for_too_long_ends_as_if_postgres_were_away() -> (
    None
):
    # Longer than a busy machine stalls: a client that reads an answer and the end of
    # its session at once learns only that the server is gone.
    with share_sessions("test", most=1, idle_in_transaction_session_timeout="2s"):
        with pytest.raises(OperationalError, match="idle in a transaction"):
            freeze_in_a_transaction()
        with borrow():
            assert not Topic.objects.exists()


def freeze_in_a_transaction() -> None:
    with borrow(), transaction.atomic():
        Topic.objects.exists()
        session = connection.connection.pgconn.socket
        # Postgres says on the socket that it ended the session.
        assert select.select([session], [], [], 60)[0]
        Topic.objects.exists()


def test_the_pool_hands_out_no_session_that_ended() -> None:
    with share_sessions("test", most=1):
        with borrow(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (before,) = cursor.fetchone()
        with advisory_locks.attempt("test") as other:
            assert other
            other._session.execute("SELECT pg_terminate_backend(%s, 5000)", [before])
        with borrow(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (after,) = cursor.fetchone()

    assert after != before


def test_sessions_are_not_shared_after_the_block() -> None:
    before = dict(connections.settings["default"])
    with share_sessions("test", most=1), borrow():
        Topic.objects.exists()

    assert connections.settings["default"] == before
    assert Topic.objects.count() == 0
