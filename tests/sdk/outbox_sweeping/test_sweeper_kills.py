"""Sweepers that are killed or frozen anywhere lose no message, and share none."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis

from poisonguard.outbox.publishers.redis_streams import RedisStreamsPublisher
from tests import preloaded_fork_server
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.sdk.outbox_sweeping import guarded_stream_consumer, sweeper_process
from tests.sdk.outbox_sweeping.outbox_tables import CLAIMS_END, OutboxTables
from tests.sdk.outbox_sweeping.sweeper_process import (
    ERRORS_FILE,
    SENT_FILE,
    plan_text,
)
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    sweeping,
    work_until,
)
from tests.waiting import wait_until

preloaded_fork_server.of(guarded_stream_consumer.__name__)
log = logging.getLogger(__name__)
FORKS = preloaded_fork_server.of(sweeper_process.__name__)
IS_SOAK = bool(os.environ.get("SOAK"))
# A consumer is killed, too, after so many sweepers.
KILLS_A_CONSUMER = 4
KILLS, ROWS, WINDOW = (200, 100_000, 100) if IS_SOAK else (24, 2_000, 25)
# Calls of a first window: connect, settings, schema, take-over, and then claim,
# look-up, publish and mark. Those of the figures and of pruning follow.
CLAIM, LOOK_UP, PUBLISH, MARK = 4, 5, 6, 7
LAST_CALL = 20
END_LOCKS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'poisonguard locks' AND datname = current_database()
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], ForkServerProcess]]:
    """Start sweepers of plans; those that still run are killed at the end."""
    started: list[ForkServerProcess] = []

    def start_one(plan: str) -> ForkServerProcess:
        process = FORKS.Process(target=sweeper_process.main, args=[plan])
        process.start()
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.join()


Start = Callable[[str], ForkServerProcess]


def lines(folder: Path) -> list[str]:
    file = folder / SENT_FILE
    return file.read_text().splitlines() if file.exists() else []


class GuardedStream:
    """A stream that a guarded consumer reads; killed, another one takes its place."""

    def __init__(self, dsn: str, url: str) -> None:
        self.redis_url = os.environ["CELERY_BROKER_URL"].rsplit("/", 1)[0] + "/14"
        self.topic = f"orders-{uuid4().hex}"
        self.effects = guarded_stream_consumer.Effects(dsn)
        self.effects.make()
        self._redis: Any = redis.Redis.from_url(self.redis_url, protocol=2)
        self._redis.xgroup_create(
            self.topic, guarded_stream_consumer.GROUP, id="0", mkstream=True
        )
        self._place = json.dumps(
            {
                "topic": self.topic,
                "redis_url": self.redis_url,
                "dsn": dsn,
                "url": url,
            }
        )
        self.kills = 0
        self._consumer = self._start()

    def _start(self) -> ForkServerProcess:
        process = FORKS.Process(target=guarded_stream_consumer.main, args=[self._place])
        process.start()
        return process

    def kill_consumer(self) -> None:
        assert self._consumer.is_alive()
        self._consumer.kill()
        self._consumer.join()
        self.kills += 1
        self._consumer = self._start()

    def consume_all(self) -> None:
        """Wait until all is settled, and end the consumer."""
        wait_until(lambda: self._unsettled() == 0, seconds=3_000)
        self._consumer.terminate()
        self._consumer.join(60)
        assert self._consumer.exitcode == 0

    def _unsettled(self) -> int:
        assert self._consumer.is_alive()
        (group,) = self._redis.xinfo_groups(self.topic)
        return int(group["lag"]) + int(group["pending"])

    @property
    def length(self) -> int:
        return int(self._redis.xlen(self.topic))

    @property
    def counts(self) -> Counter[str]:
        """Count how often each message id was sent."""
        entries = self._redis.xrange(self.topic)
        return Counter(fields[b"message_id"].decode() for _, fields in entries)

    def close(self) -> None:
        self._consumer.kill()
        self._consumer.join()
        self._redis.delete(self.topic)
        self._redis.close()
        self.effects.drop()


@pytest.fixture
def stream(outbox: OutboxTables, server: FakeServer) -> Iterator[GuardedStream]:
    stream = GuardedStream(outbox.dsn, server.url)
    yield stream
    stream.close()


@pytest.mark.timeout(3_600 if IS_SOAK else 900)
def test_kills_between_claim_send_and_mark_lose_no_message_and_handle_none_twice(
    outbox: OutboxTables, tmp_path: Path, start: Start, stream: GuardedStream
) -> None:
    outbox.put_many(ROWS, topic=stream.topic)
    # So rows do not wait for the claims of the dead.
    outbox.execute("UPDATE poisonguard_outbox SET key = message_id")
    settings = {"claim_seconds": 2.0, "window_rows": WINDOW}
    places = [(at, late) for at in (CLAIM, LOOK_UP, PUBLISH, MARK) for late in (0, 1)]

    for number in range(KILLS):
        before = stream.length
        at, is_late = places[number % len(places)]
        if number >= 2 * len(places):
            at, is_late = random.randint(0, LAST_CALL), random.randint(0, 1)
        plan = plan_text(
            dsn=outbox.dsn,
            folder=str(tmp_path),
            redis_url=stream.redis_url,
            at=at,
            is_late=bool(is_late),
            settings=settings,
        )
        process = start(plan)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        assert stream.length - before <= 5 * WINDOW
        if number % KILLS_A_CONSUMER == 0:
            stream.kill_consumer()

    publisher = RedisStreamsPublisher(stream.redis_url)
    with sweeping(outbox.dsn, publisher, claim_seconds=2.0) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting, seconds=300)
    publisher.close()
    stream.consume_all()

    ids = {f"m-{number}" for number in range(1, ROWS + 1)}
    sent_ids = stream.counts
    effects = stream.effects.counts
    log.info(
        "%d kills of sweepers, %d of consumers: %d rows, %d messages, %d effects",
        *(KILLS, stream.kills, ROWS, sent_ids.total(), sum(effects.values())),
    )
    assert sent_ids.keys() == ids
    assert sent_ids.total() - ROWS <= KILLS * WINDOW
    # At least one window was sent, and its marks were lost.
    assert sent_ids.total() > ROWS
    assert outbox.count("sent_at IS NOT NULL") == ROWS
    assert outbox.reasons() == {}
    assert effects == dict.fromkeys(ids, 1)


def test_a_kill_in_the_middle_of_a_window_costs_at_most_its_rows(
    outbox: OutboxTables, tmp_path: Path, start: Start
) -> None:
    outbox.put_many(100)
    plan = plan_text(
        dsn=outbox.dsn,
        folder=str(tmp_path),
        at=MARK,
        settings={"window_rows": 25},
    )
    start(plan).join(120)
    outbox.execute(CLAIMS_END)
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)

    assert lines(tmp_path) == [f"m-{number}" for number in range(1, 26)]
    sent_ids = [message.message_id for message in publisher.sent_messages]
    assert sent_ids == [f"m-{number}" for number in range(1, 101)]


@pytest.mark.parametrize(
    ("at", "is_late"),
    [(CLAIM, True), (LOOK_UP, False), (LOOK_UP, True)],
    ids=["claimed", "before the look-up", "before sending"],
)
def test_a_frozen_sweeper_sends_nothing_once_another_has_taken_over(
    outbox: OutboxTables, tmp_path: Path, start: Start, at: int, *, is_late: bool
) -> None:
    outbox.put_many(60)
    plan = plan_text(
        dsn=outbox.dsn,
        folder=str(tmp_path),
        at=at,
        is_late=is_late,
        signal_number=int(signal.SIGSTOP),
        settings={"claim_seconds": 1.0, "window_rows": 20},
    )
    pid = start(plan).pid
    assert pid is not None
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "T")
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        connection.execute(END_LOCKS)
    publisher = RecordingPublisher()

    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
        os.kill(pid, signal.SIGCONT)
        errors = tmp_path / ERRORS_FILE
        wait_until(errors.exists)
        outbox.put_many(20, first=61)
        work_until(sweeper, lambda: not outbox.waiting)
        assert errors.read_text() == "Fenced"
        assert sweeper.errors.errors == []

    # The other has released the lock: the thawed one works again, for what is new.
    assert lines(tmp_path) == []
    outbox.put_many(5, first=81)
    wait_until(lambda: not outbox.waiting)
    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 81)}
    assert lines(tmp_path) == [f"m-{number}" for number in range(81, 86)]


@pytest.mark.parametrize(
    ("key", "copies"), [("", 20), ("k", 1)], ids=["no keys", "one key"]
)
def test_a_sweeper_that_is_frozen_in_its_call_of_the_broker_sends_that_alone(
    outbox: OutboxTables, tmp_path: Path, start: Start, key: str, copies: int
) -> None:
    """Nothing of ours runs between the broker's client and the broker."""
    outbox.put_many(60, key=key)
    plan = plan_text(
        dsn=outbox.dsn,
        folder=str(tmp_path),
        at=PUBLISH,
        signal_number=int(signal.SIGSTOP),
        settings={"claim_seconds": 4.0, "window_rows": 20},
    )
    pid = start(plan).pid
    assert pid is not None
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "T")
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        connection.execute(END_LOCKS)
    publisher = RecordingPublisher()

    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
        os.kill(pid, signal.SIGCONT)
        wait_until((tmp_path / ERRORS_FILE).exists)
        outbox.put_many(20, first=61, key=key)
        work_until(sweeper, lambda: not outbox.waiting)

    assert lines(tmp_path) == [f"m-{number}" for number in range(1, copies + 1)]
    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 81)}
    assert outbox.count("sent_at IS NOT NULL") == 80
    assert outbox.reasons() == {}


def test_a_sweeper_that_loses_its_lock_in_a_window_leaves_the_rest(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(3, key="k")
    publisher = RecordingPublisher()

    with sweeping(outbox.dsn, publisher) as sweeper:

        def lose_lock(_: object) -> None:
            publisher.before = lambda batch: None
            outbox.execute(END_LOCKS)
            wait_until(lambda: sweeper.health().fence is None)

        publisher.before = lose_lock
        sweeper.work_once()
        assert publisher.counts == {"m-1": 1}
        assert outbox.count("claim_token IS NOT NULL") == 0
        work_until(sweeper, lambda: not outbox.waiting)

    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 4)}


def test_a_second_sweeper_waits_for_the_first(outbox: OutboxTables) -> None:
    outbox.put_many(10)
    one, other = RecordingPublisher(), RecordingPublisher()
    with sweeping(outbox.dsn, one) as first, sweeping(outbox.dsn, other) as second:
        first.work_once()
        for number in range(5):
            outbox.put(f"n-{number}")
            second.work_once()
        assert (len(one.sent_messages), len(other.sent_messages)) == (10, 0)
        assert second.health().fence is None
        first.close()
        work_until(second, lambda: not outbox.waiting)
        assert len(other.sent_messages) == 5
        assert second.health().fence is not None
        assert [*first.errors.errors, *second.errors.errors] == []


def test_sweepers_with_other_search_paths_share_one_lock(outbox: OutboxTables) -> None:
    outbox.execute("DROP SCHEMA IF EXISTS sweeper")
    outbox.execute("CREATE SCHEMA sweeper")  # as a role of this name would find first
    other_dsn = f"{outbox.dsn}?options=-csearch_path%3Dsweeper,public"
    publisher = RecordingPublisher()
    with (
        sweeping(outbox.dsn, publisher) as first,
        sweeping(other_dsn, publisher) as second,
    ):
        first.work_once()
        for _ in range(3):
            second.work_once()
        assert second.health().fence is None
        assert [*first.errors.errors, *second.errors.errors] == []
    assert outbox.execute("SELECT name FROM poisonguard_lock_resources") == [
        ("outbox:public",)
    ]


def test_a_lower_fence_claims_nothing_and_is_told(outbox: OutboxTables) -> None:
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher) as sweeper:
        sweeper.work_once()
        outbox.execute("UPDATE poisonguard_outbox_sweeper SET fence = 1000")
        outbox.put_many(3)
        for _ in range(100):
            sweeper.work_once()
        assert publisher.sent_messages == []
        kinds = {error.kind for error in sweeper.errors.errors}
        assert kinds == {"Fenced", "Misconfigured"}
        assert "UPDATE poisonguard_outbox_sweeper" in " ".join(
            error.last_text for error in sweeper.errors.errors
        )
        outbox.execute("UPDATE poisonguard_outbox_sweeper SET fence = 0")
        work_until(sweeper, lambda: not outbox.waiting)
