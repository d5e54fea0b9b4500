"""A worker that dies at any instant loses nothing, and its work goes on.

Worker and beat are processes as in production. Every kill takes the worker's whole
process group; the next worker is started by hand, as a supervisor would. As soon as it
works, it is killed at a random instant. Operations follow one another until there were
enough kills, for one alone is over too soon.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection
from redis import Redis

from apps.audit import services as audit
from apps.audit.models import Entry
from apps.audit.services import Action
from apps.brokers.models import Topic
from apps.core import clock
from apps.poison.models import Body, Poison, Redrive
from apps.poison.query import Query
from apps.poison.states import State as PoisonState
from apps.poison.tokens import redrive_of
from apps.team.rights import Principal
from apps.triage import dispatch
from apps.triage.models import Item, Operation
from apps.triage.services import selection
from apps.triage.services.running import WINDOW
from apps.triage.services.selection import Ask
from apps.triage.states import State, Verb
from poisonweb.embedded import processes
from tests.acceptance.product import ROOT, eventually
from tests.reports import capture, failure

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

KILLS, ITEMS = (200, 100_000) if os.environ.get("SOAK") else (20, 5_000)
BATCH = 1_000
# A worker that lives this long sends some thousand messages.
LONGEST_LIFE = 0.3
RECOVERY_SECONDS = 5.0
PATIENCE = 60 + ITEMS / 500
TOPIC = "orders"


class Celery:
    """One Celery process with all its children, on the database of this test."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._from = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                (sys.executable, "-m", "celery", "-A", "poisonweb", *arguments),
                cwd=ROOT,
                env={**os.environ, "DATABASE_URL": url_of_this_database()},
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self._said()
        return " ready." in self._said()

    def kill(self) -> None:
        processes.kill_group(self.process.pid)
        self.process.wait()
        eventually(lambda: not processes.members(self.process.pid))

    def _said(self) -> str:
        return self._log.read_bytes()[self._from :].decode("utf-8", "replace")


def url_of_this_database() -> str:
    given = urlsplit(os.environ["DATABASE_URL"])
    return urlunsplit(given._replace(path=f"/{connection.settings_dict['NAME']}"))


@pytest.fixture
def beat(tmp_path: Path) -> Iterator[None]:
    schedule = str(tmp_path / "schedule")
    beat = Celery(tmp_path / "beat.log", "beat", "--schedule", schedule)
    yield
    beat.kill()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[[], Celery]]:
    """Start workers as the supervisor does; what is left of them ends with the test."""
    started: list[Celery] = []

    def start() -> Celery:
        alone = ("--without-gossip", "--without-mingle")
        worker = Celery(
            tmp_path / "worker.log",
            *("worker", "--loglevel", "INFO", "--concurrency", "2", *alone),
        )
        started.append(worker)
        return worker

    yield start
    for worker in started:
        processes.kill_group(worker.process.pid)
        worker.process.wait()


def capture_many(number: int) -> None:
    now = clock.now()
    for start in range(0, number, BATCH):
        some = range(start, min(start + BATCH, number))
        bodies = (json.dumps({"at": now.isoformat(), "n": n}).encode() for n in some)
        capture(now, *(failure(now, topic=TOPIC, body=body) for body in bodies))


def begin(operator: Principal) -> Operation:
    """Decide to requeue all that is open."""
    ask = Ask(verb=Verb.REDRIVE, query=Query.parse(f"topic:{TOPIC} is:open"))
    operation = dispatch.preview(ask=ask, principal=operator, now=clock.now())
    selection.take(operation_id=operation.pk, now=clock.now())
    return dispatch.confirm(
        token=operation.token, reason="killing", principal=operator, now=clock.now()
    )


def is_done(operation: Operation) -> bool:
    return Operation.objects.get(pk=operation.pk).state == State.DONE


def runs(operation: Operation) -> int:
    """Count the runs that have taken the operation up."""
    return Operation.objects.get(pk=operation.pk).epoch


def await_run(operation: Operation, *, after: int) -> float:
    """Wait for the next run, and return how long it took to begin."""
    since = time.monotonic()
    while runs(operation) == after and not is_done(operation):
        assert time.monotonic() - since < RECOVERY_SECONDS, "nobody goes on"
        time.sleep(0.01)
    return time.monotonic() - since


def test_twenty_kills_lose_nothing_and_send_nothing_under_two_ids(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    beat: None,
    start_worker: Callable[[], Celery],
) -> None:
    operations, kills = list[Operation](), 0
    while kills < KILLS:
        capture_many(ITEMS)
        operation = begin(operator)
        operations.append(operation)
        while not is_done(operation):
            before = runs(operation)
            worker = start_worker()
            eventually(worker.is_ready, seconds=60)
            await_run(operation, after=before)
            if kills == KILLS:
                eventually(partial(is_done, operation), seconds=PATIENCE)
            time.sleep(random.uniform(0, LONGEST_LIFE))
            # One that is killed after the work is done was not killed during it.
            kills += not is_done(operation)
            worker.kill()

    expect_all_sent(operations)
    expect_a_true_stream(stream, kills=kills)
    expect_a_true_trail(operations)


def expect_all_sent(operations: list[Operation]) -> None:
    """Every item has ended, and the counts add up to the total."""
    for operation in operations:
        found = Operation.objects.get(pk=operation.pk)
        counts = found.items.counts()
        assert {word: n for word, n in counts.items() if n} == {"sent": ITEMS}
        assert (found.total, found.trouble) == (ITEMS, "")
    assert not Item.objects.filter(held=True).exists()
    states = Poison.objects.values_list("state", "redrives").distinct()
    assert list(states) == [(PoisonState.REDRIVEN, 1)]


def expect_a_true_stream(stream: Redis, *, kills: int) -> None:
    """Each message is in the stream, byte for byte, and all its copies are one send."""
    sends = defaultdict[bytes, Counter[str]](Counter)
    for fields in messages(stream):
        token = fields.pop(b"x-poisonweb-redrive").decode()
        sends[fields.pop(b"body")][str(redrive_of(token))] += 1
        assert fields == {}
    made = Redrive.objects.values_list("poison_id", "id", "copies")
    redrives = {poison: (str(pk), copies) for poison, pk, copies in made}
    bodies = {bytes(b.content): b.poison_id for b in Body.objects.iterator()}

    assert set(sends) == set(bodies)
    for body, counted in sends.items():
        redrive, copies = redrives[bodies[body]]
        assert set(counted) == {redrive}
        assert counted[redrive] <= copies
    twice = sum(counted.total() for counted in sends.values()) - len(sends)
    assert twice <= 2 * WINDOW * kills


def messages(stream: Redis) -> Iterator[dict[bytes, bytes]]:
    start = "-"
    while page := stream.xrange(TOPIC, min=start, count=BATCH):
        entries: Any = page
        yield from (fields for _, fields in entries)
        start = "(" + entries[-1][0].decode()


def expect_a_true_trail(operations: list[Operation]) -> None:
    """Each decision is on record once, and so is its end."""
    for operation in operations:
        told = Entry.objects.filter(subject=f"operation:{operation.pk}")
        assert list(told.order_by("seq").values_list("action", flat=True)) == [
            Action.OPERATION_CONFIRMED,
            Action.OPERATION_FINISHED,
        ]
    assert audit.verify().ok
