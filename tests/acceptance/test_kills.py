"""A worker that dies at any instant loses nothing, and its work goes on.

Worker and beat are processes as in production, but for what they loaded before they
were forked. Every kill takes the worker's whole process group; the next worker is
started by hand, as a supervisor would. As soon as it works, it is killed at a random
instant, while a consumer answers what it has sent.
Where one operation is over before there were enough kills, another one follows.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from django.db import connection, connections
from redis import Redis

from apps.audit import verification
from apps.audit.models import Entry
from apps.audit.services import Action
from apps.brokers.models import Topic
from apps.capture.intake import services
from apps.core import clock
from apps.poison.models import Body, Poison, Redrive
from apps.poison.query import Query
from apps.poison.redrive_signatures import redrive_of
from apps.poison.states import PoisonState
from apps.team.rights import Principal
from apps.triage import dispatch
from apps.triage.models import Item, Operation
from apps.triage.services import previews
from apps.triage.services.previews import SelectionRequest
from apps.triage.services.windows import WINDOW
from apps.triage.states import OperationState, Verb
from poisonweb.embedded import processes
from tests import preloaded_fork_server
from tests.acceptance import celery_process
from tests.reports import GUARD, capture, failure
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

KILLS, ITEMS = (200, 100_000) if os.environ.get("SOAK") else (20, 5_000)
BATCH = 1_000
# A worker that lives this long sends some thousand messages.
LONGEST_LIFE = 0.3
# What is promised, where nothing else works beside it.
RECOVERY_SECONDS = 5.0 if os.environ.get("SOAK") else 60.0
PATIENCE = 60 + ITEMS / 500
TOPIC, GROUP = "orders", "billing"
FORKS = preloaded_fork_server.of(celery_process.__name__)


class Celery:
    """One Celery process with all its children, on the database of this test."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._from = log.stat().st_size if log.exists() else 0
        self.process = FORKS.Process(
            target=celery_process.main,
            args=(connection.settings_dict["NAME"], log, arguments),
        )
        self.process.start()

    @property
    def group(self) -> int:
        assert self.process.pid
        return self.process.pid

    def is_ready(self) -> bool:
        assert self.process.is_alive(), self._said()
        return " ready." in self._said()

    def kill(self) -> None:
        processes.kill_group(self.group)
        self.process.join()
        wait_until(lambda: not members_of_group(self.group))

    def _said(self) -> str:
        said = self._log.read_bytes() if self._log.exists() else b""
        return said[self._from :].decode("utf-8", "replace")


def members_of_group(group: int) -> list[int]:
    stats = ((pid, processes.stat(pid)) for pid in processes.all_pids())
    return [pid for pid, fields in stats if fields and fields[2] == str(group)]


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
        processes.kill_group(worker.group)
        worker.process.join()


def capture_many(number: int, *, batch: str) -> None:
    now = clock.now()
    why = {"type": batch, "message": "", "traceback": ""}
    for start in range(0, number, BATCH):
        some = range(start, min(start + BATCH, number))
        bodies = (json.dumps({"batch": batch, "n": n}).encode() for n in some)
        capture(now, *(failure(now, body=body, exception=why) for body in bodies))


class Consumer:
    """Answer each redriven message from a thread: even ones are handled, odd ones fail.

    A copy of a message is answered like the first.
    """

    def __init__(self, stream: Redis) -> None:
        self._stream = stream
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._stream.xgroup_create(TOPIC, GROUP, id="0", mkstream=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._answer(self._read())
        finally:
            connections.close_all()

    def _read(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        read: Any = self._stream.xreadgroup(
            GROUP, "billing-1", {TOPIC: ">"}, count=50, block=100, noack=True
        )
        return read[0][1] if read else []

    def _answer(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        now = clock.now()
        handled, failed = list[object](), list[dict[str, object]]()
        for bookmark, fields in entries:
            fields_of_report = {"redrive": fields[b"x-poisonweb-redrive"].decode()}
            if is_handled(fields[b"body"]):
                member = failure(now, **fields_of_report)
                handled.append({**member, "at": member["failed_at"]})
            else:
                fields_of_report |= {"bookmark": bookmark.decode()}
                failed.append(failure(now, body=fields[b"body"], **fields_of_report))
        capture(now, *failed)
        services.confirm(members=handled, principal=GUARD, now=now)


def is_handled(body: bytes) -> bool:
    return bool(json.loads(body)["n"] % 2 == 0)


def begin(operator: Principal, *, batch: str) -> Operation:
    """Decide to requeue a batch."""
    selection = SelectionRequest(
        verb=Verb.REDRIVE, query=Query.parse(f"topic:{TOPIC} error:{batch}")
    )
    operation = dispatch.preview(
        selection=selection, principal=operator, now=clock.now()
    )
    previews.take(operation_id=operation.pk, now=clock.now())
    return dispatch.confirm(
        token=operation.token, reason="killing", principal=operator, now=clock.now()
    )


def is_done(operation: Operation) -> bool:
    return Operation.objects.get(pk=operation.pk).state == OperationState.DONE


def runs(operation: Operation) -> int:
    """Count the runs that have taken the operation up."""
    return Operation.objects.get(pk=operation.pk).epoch


def await_run(operation: Operation, *, after: int) -> float:
    """Wait for the next run, and return how long it took to begin."""
    since = time.monotonic()
    wait_until(
        lambda: runs(operation) != after or is_done(operation),
        seconds=RECOVERY_SECONDS,
    )
    return time.monotonic() - since


def test_kills_lose_nothing_and_send_nothing_under_two_ids(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    beat: None,
    start_worker: Callable[[], Celery],
) -> None:
    operations, kills = list[Operation](), 0
    with Consumer(stream):
        while kills < KILLS:
            batch = f"Batch{len(operations)}"
            capture_many(ITEMS, batch=batch)
            operation = begin(operator, batch=batch)
            operations.append(operation)
            while not is_done(operation):
                before = runs(operation)
                worker = start_worker()
                wait_until(worker.is_ready)
                await_run(operation, after=before)
                if kills == KILLS:
                    wait_until(partial(is_done, operation), seconds=PATIENCE)
                time.sleep(random.uniform(0, LONGEST_LIFE))
                # One that is killed after the work is done was not killed during it.
                kills += not is_done(operation)
                worker.kill()
        wait_until(partial(all_are_answered, operations), seconds=PATIENCE)

    expect_all_ended(operations)
    expect_a_true_stream(stream, kills=kills)
    expect_a_true_trail(operations)


def all_are_answered(operations: list[Operation]) -> bool:
    return not any(operation.items.counts()["sent"] for operation in operations)


def expect_all_ended(operations: list[Operation]) -> None:
    """Every item has ended, the counts add up, and no poison is kept from others."""
    for operation in operations:
        current = Operation.objects.get(pk=operation.pk)
        counts = {word: n for word, n in current.items.counts().items() if n}
        assert counts == {"confirmed": ITEMS // 2, "recurred": ITEMS // 2}
        assert (current.total, current.trouble) == (ITEMS, "")
    assert not Item.objects.filter(held=True).exists()
    states = Poison.objects.values_list("state", "redrives", "recurrences").distinct()
    assert set(states) == {(PoisonState.CONFIRMED, 1, 0), (PoisonState.OPEN, 1, 1)}


def expect_a_true_stream(stream: Redis, *, kills: int) -> None:
    """Each message is in the stream, byte for byte, and all its copies are one send."""
    sends = defaultdict[bytes, Counter[str]](Counter)
    for fields in messages(stream):
        token = fields.pop(b"x-poisonweb-redrive").decode()
        sends[fields.pop(b"body")][str(redrive_of(token))] += 1
        assert fields == {}
    rows = Redrive.objects.values_list("poison_id", "id", "copies")
    redrives = {poison: (str(pk), copies) for poison, pk, copies in rows}
    bodies = {bytes(b.content): b.poison_id for b in Body.objects.iterator()}

    assert set(sends) == set(bodies)
    for body, counted in sends.items():
        redrive, copies = redrives[bodies[body]]
        assert set(counted) == {redrive}
        assert counted[redrive] <= copies
    twice = sum(counted.total() for counted in sends.values()) - len(sends)
    assert twice <= WINDOW * kills


def messages(stream: Redis) -> Iterator[dict[bytes, bytes]]:
    start = "-"
    while page := stream.xrange(TOPIC, min=start, count=BATCH):
        entries: Any = page
        yield from (fields for _, fields in entries)
        start = "(" + entries[-1][0].decode()


def expect_a_true_trail(operations: list[Operation]) -> None:
    """Each decision is on record once, and so is its end."""
    for operation in operations:
        entries = Entry.objects.filter(subject=f"operation:{operation.pk}")
        assert list(entries.order_by("seq").values_list("action", flat=True)) == [
            Action.OPERATION_CONFIRMED,
            Action.OPERATION_FINISHED,
        ]
    assert verification.verify().ok
