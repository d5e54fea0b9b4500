"""Web, workers and lanes from before names changed and operations had their layout.

They work beside those of this commit over one database and one broker, and each but the
web is killed and started again all the time. Operations are previewed and confirmed in
either web, whichever made the preview, and run by workers of either.
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
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from django.db import connection
from redis import Redis

from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane, LaneState, Mode
from apps.core import advisory_locks, clock
from apps.poison.models import Hold, Poison
from apps.poison.redrive_signatures import redrive_of
from apps.team.rights import Scope
from apps.triage.models import Operation
from apps.triage.operation_states import LAYOUT, OperationState
from apps.triage.tasks import rescue, run_operation
from poisonweb.embedded import process_control
from poisonweb.embedded.free_ports import free_port
from tests.acceptance.api_client import ApiClient
from tests.acceptance.earlier_commit_checkout import unpack
from tests.acceptance.product_process import ROOT, environment
from tests.acceptance.web_server_process import api_key, url_of_this_database
from tests.failure_report_builders import capture, failure
from tests.triage_operation_runner import counts_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

# The last one with the names and the layout of before.
COMMIT_BEFORE = "bf70eed"
LANES, LETTERS = 20, 4_000
ITEMS, RESTARTS = 10_000, 20
# In seconds; a worker takes longer to begin, and has to get on with its work.
LIFE_OF_LANES, LIFE_OF_WORKERS = 8.0, 8.0
SHARED_SETTINGS = (
    *("CELERY_BROKER_URL", "POISONWEB_SECRET_KEY", "POISONWEB_LOOPBACK_BROKERS"),
)
ANSWER = {"topic": "orders", "consumer_group": "billing", "client_name": "billing-1"}
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
        process_control.kill_group(self.process.pid)
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


def number_of_locks() -> int:
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
        wait_until(
            lambda: advisory_locks.names_locked(names) == set(names), seconds=120
        )
        # With other names for their locks, they would hold two for each lane.
        assert number_of_locks() == LANES
        for number in range(LETTERS):
            stream.xadd(f"d{number % LANES}", {"body": f"letter {number}".encode()})
        restarts = disturb(programs, lambda: Poison.objects.count() >= LETTERS)
        restarts += disturb_for(programs, seconds=120)
        wait_until(
            lambda: advisory_locks.names_locked(names) == set(names), seconds=120
        )
        running = Lane.objects.filter(state=LaneState.RUNNING)
        wait_until(lambda: running.count() == LANES, seconds=120)

    assert restarts > 10
    assert Poison.objects.count() == LETTERS
    assert set(Poison.objects.values_list("failures", flat=True)) == {1}


def disturb_for(programs: list[Program], *, seconds: float) -> int:
    until = time.monotonic() + seconds
    return disturb(programs, lambda: time.monotonic() > until)


def test_each_message_is_sent_as_one_redrive_by_workers_of_two_trees(
    trees: tuple[Path, Path], orders: Topic, stream: Redis
) -> None:
    batches: list[Operation] = []
    restarts = 0
    with both(trees, *WORKER) as workers, webs_of(trees) as webs:
        while restarts < RESTARTS:
            capture_batch(len(batches))
            batches.append(begin_batch(len(batches), webs))
            while not is_done(batches[-1]):
                beat(random.uniform(0, LIFE_OF_WORKERS))
                restarts += not is_done(batches[-1])
                random.choice(workers).restart()
                run_operation.delay(batches[-1].pk)
        confirm_all(stream, webs)
        wait_until(is_all_of_this_release, seconds=60)

    sends = defaultdict[bytes, set[str]](set)
    for fields in messages(stream):
        token = fields[b"x-poisonweb-redrive"].decode()
        sends[fields[b"body"]].add(str(redrive_of(token)))
    assert Counter(map(len, sends.values())) == {1: len(batches) * ITEMS}
    assert [counts_of(each) for each in batches] == [{"confirmed": ITEMS}] * len(
        batches
    )
    assert set(Poison.objects.values_list("state", flat=True)) == {"confirmed"}
    assert not Hold.objects.exists()


@contextmanager
def webs_of(trees: tuple[Path, Path]) -> Iterator[list[ApiClient]]:
    """Serve both trees; give a client of each, with all scopes that both know."""
    key = api_key(*(set(Scope) - {Scope.GATEWAY_CALL}))
    ports = (free_port(), free_port())
    programs = [
        Program(tree, "-m", "poisonweb.web", "--port", str(port))
        for tree, port in zip(trees, ports, strict=True)
    ]
    clients = [ApiClient(url=f"http://127.0.0.1:{port}", key=key) for port in ports]
    try:
        for client in clients:
            wait_until(partial(answers, client), seconds=60)
        yield clients
    finally:
        for program in programs:
            program.end()


def answers(client: ApiClient) -> bool:
    with suppress(OSError):
        client.get("operations")
        return True
    return False


def capture_batch(number: int) -> None:
    """Capture messages of an error of their own."""
    now, error = clock.now(), {"type": f"Batch{number}", "message": "", "traceback": ""}
    for start in range(0, ITEMS, 1_000):
        bodies = (f"{number}/{start + n}".encode() for n in range(1_000))
        capture(now, *(failure(now, body=body, exception=error) for body in bodies))


def begin_batch(number: int, webs: list[ApiClient]) -> Operation:
    """Preview and confirm a requeue, each in any web, until one of them accepts it.

    The release before does not know the items of a preview that this one has made.
    """
    selection = {"verb": "redrive", "q": f"topic:orders error:Batch{number}"}
    for _ in range(100):
        preview = random.choice(webs).post("operations/preview", {**selection})
        confirmation = {"token": preview["token"], "reason": "two"}
        try:
            accepted = random.choice(webs).post("operations", {**confirmation})
        except HTTPError as refusal:
            if refusal.code != HTTPStatus.CONFLICT:
                raise
            beat(1)
        else:
            return Operation.objects.get(pk=accepted["id"])
    raise AssertionError("no web accepted it")


def confirm_all(stream: Redis, webs: list[ApiClient]) -> None:
    """Handle all messages, and say so to any web."""
    tokens = [fields[b"x-poisonweb-redrive"].decode() for fields in messages(stream)]
    for start in range(0, len(tokens), 100):
        members = [
            {**ANSWER, "redrive": token, "at": clock.now().isoformat()}
            for token in tokens[start : start + 100]
        ]
        answer = random.choice(webs).post("confirmations", {"confirmations": members})
        # A killed worker may have sent some of them twice.
        statuses = {each["status"] for each in answer["results"]}
        assert statuses <= {"confirmed", "duplicate"}


def beat(seconds: float) -> None:
    """Ask for a rescue every second, as beat does every two, for this long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        rescue.delay()
        time.sleep(1)


def is_done(operation: Operation) -> bool:
    return Operation.objects.get(pk=operation.pk).state == OperationState.DONE


def is_all_of_this_release() -> bool:
    """Tell whether the last operation is converted; ask for it, too."""
    rescue.delay()
    time.sleep(1)
    return not Operation.objects.confirmed().exclude(layout=LAYOUT).exists()


def messages(stream: Redis) -> Iterator[dict[bytes, bytes]]:
    start = "-"
    while page := stream.xrange("orders", min=start, count=1_000):
        entries: Any = page
        yield from (fields for _, fields in entries)
        start = "(" + entries[-1][0].decode()
