"""Lanes and workers of the commit before a great renaming, beside those of this one.

They work over one database and one broker, and each is killed and started again all
the time. What they agree on are names: of locks, tasks, tables and columns.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from redis import Redis

from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane, LaneState, Mode
from apps.core import clock, lock
from apps.poison.models import Poison
from apps.poison.query import Query
from apps.poison.redrive_signatures import redrive_of
from apps.team.rights import Principal
from apps.triage import dispatch
from apps.triage.models import Operation
from apps.triage.services import previews
from apps.triage.services.previews import SelectionRequest
from apps.triage.states import OperationState, Verb
from apps.triage.tasks import run_operation
from poisonweb.embedded import processes
from tests.acceptance.earlier_tree import unpack
from tests.acceptance.product import ROOT, environment
from tests.acceptance.web import url_of_this_database
from tests.reports import capture, failure
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

COMMIT_BEFORE = "bf70eed"
LANES, LETTERS = 20, 4_000
ITEMS, RESTARTS = 10_000, 20
# In seconds; a worker takes longer to begin, and has to get on with its work.
LIFE_OF_LANES, LIFE_OF_WORKERS = 8.0, 8.0
SHARED_SETTINGS = (
    *("CELERY_BROKER_URL", "POISONWEB_SECRET_KEY", "POISONWEB_LOOPBACK_BROKERS"),
)
WORKER = (
    *("-m", "celery", "-A", "poisonweb", "worker", "--loglevel", "WARNING"),
    *("--concurrency", "2", "--without-gossip", "--without-mingle"),
)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return unpack(COMMIT_BEFORE, tmp_path_factory.mktemp("before")), ROOT


class Program:
    """A program of one of the trees, which can be killed and started again."""

    def __init__(self, tree: Path, *arguments: str) -> None:
        self._tree = tree
        self._arguments = arguments
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            (sys.executable, *self._arguments),
            cwd=self._tree,
            env=environment(
                DATABASE_URL=url_of_this_database(),
                PYTHONPATH=f"{self._tree}:{self._tree / 'sdk'}",
                **{name: os.environ[name] for name in SHARED_SETTINGS},
            ),
            process_group=0,
        )

    def restart(self) -> None:
        """End it, kindly or not, with all its children, and start it again at once."""
        assert self.process.poll() is None, "it ended by itself"
        if random.random() < 0.5:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        self.end()
        self.process = self._spawn()

    def end(self) -> None:
        processes.kill_group(self.process.pid)
        self.process.wait()


@contextmanager
def both(trees: tuple[Path, Path], *arguments: str) -> Iterator[list[Program]]:
    programs = [Program(tree, *arguments) for tree in trees]
    try:
        yield programs
    finally:
        for program in programs:
            program.end()


def disturb(programs: list[Program], until: Callable[[], bool]) -> int:
    """Restart one after the other, in any order, until it is over; count that."""
    restarts = 0
    while not until():
        time.sleep(random.uniform(0, LIFE_OF_LANES))
        random.choice(programs).restart()
        restarts += 1
    return restarts


def advisory_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND database = (SELECT oid FROM pg_database"
            " WHERE datname = current_database())"
        )
        (number,) = cursor.fetchone()
    return int(number)


def test_each_letter_is_captured_once_by_lanes_of_two_trees(
    trees: tuple[Path, Path], redis_url: str, stream: Redis
) -> None:
    redis = Broker.objects.create(name="redis", kind="redis_streams", url=redis_url)
    topics = Topic.objects.bulk_create(
        Topic(
            name=f"t{n}", native_name=f"t{n}", broker=redis, dead_letter_queue=f"d{n}"
        )
        for n in range(LANES)
    )
    for topic in topics:
        Lane.objects.create(topic=topic, mode=Mode.CAPTURE.value)
    names = [f"lane:{topic.pk}" for topic in topics]

    with both(trees, "manage.py", "lanes") as programs:
        wait_until(lambda: lock.names_locked(names) == set(names), seconds=120)
        # With other names for their locks, they would hold two for each lane.
        assert advisory_locks() == LANES
        for number in range(LETTERS):
            stream.xadd(f"d{number % LANES}", {"body": f"letter {number}".encode()})
        restarts = disturb(programs, lambda: Poison.objects.count() >= LETTERS)
        restarts += disturb_for(programs, seconds=120)
        wait_until(lambda: lock.names_locked(names) == set(names), seconds=120)
        running = Lane.objects.filter(state=LaneState.RUNNING)
        wait_until(lambda: running.count() == LANES, seconds=120)

    assert restarts > 10
    assert Poison.objects.count() == LETTERS
    assert set(Poison.objects.values_list("failures", flat=True)) == {1}


def disturb_for(programs: list[Program], *, seconds: float) -> int:
    until = time.monotonic() + seconds
    return disturb(programs, lambda: time.monotonic() > until)


def test_each_message_is_sent_as_one_redrive_by_workers_of_two_trees(
    trees: tuple[Path, Path], orders: Topic, stream: Redis, operator: Principal
) -> None:
    batches = restarts = 0
    with both(trees, *WORKER) as programs:
        while restarts < RESTARTS:
            operation = begin_batch(batches, operator)
            batches += 1
            while not is_done(operation):
                time.sleep(random.uniform(0, LIFE_OF_WORKERS))
                restarts += not is_done(operation)
                random.choice(programs).restart()
                dispatch_again(operation)

    sends = defaultdict[bytes, set[str]](set)
    for fields in messages(stream):
        token = fields[b"x-poisonweb-redrive"].decode()
        sends[fields[b"body"]].add(str(redrive_of(token)))
    assert Counter(map(len, sends.values())) == {1: batches * ITEMS}


def begin_batch(number: int, operator: Principal) -> Operation:
    """Capture messages of an error of their own, and decide to requeue them."""
    now, error = clock.now(), {"type": f"Batch{number}", "message": "", "traceback": ""}
    for start in range(0, ITEMS, 1_000):
        bodies = (f"{number}/{start + n}".encode() for n in range(1_000))
        capture(now, *(failure(now, body=body, exception=error) for body in bodies))
    query = Query.parse(f"topic:orders error:Batch{number}")
    selection = SelectionRequest(verb=Verb.REDRIVE, query=query)
    operation = dispatch.preview(
        selection=selection, principal=operator, now=clock.now()
    )
    previews.take(operation_id=operation.pk, now=clock.now())
    return dispatch.confirm(
        token=operation.token, reason="two", principal=operator, now=clock.now()
    )


def is_done(operation: Operation) -> bool:
    return Operation.objects.get(pk=operation.pk).state == OperationState.DONE


def dispatch_again(operation: Operation) -> None:
    """Enqueue what a killed worker had taken, as beat does every few seconds."""
    run_operation.delay(operation.pk)


def messages(stream: Redis) -> Iterator[dict[bytes, bytes]]:
    start = "-"
    while page := stream.xrange("orders", min=start, count=1_000):
        entries: Any = page
        yield from (fields for _, fields in entries)
        start = "(" + entries[-1][0].decode()
