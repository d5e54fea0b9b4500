"""The upgrade of a large installation at work, from release 9a46585.

Its web, worker and lanes go on while this release migrates, and beside those of this
release for a minute. An operation runs meanwhile, one waits, and one is not confirmed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psycopg
import pytest
from django.db import connection
from redis import Redis

from apps.core import clock
from apps.core.advisory_locks import key_of
from apps.poison.models import Hold, Poison
from apps.poison.redrive_signatures import redrive_of
from apps.poison.services import counts
from apps.team.rights import Scope
from apps.triage.models import Operation, lock_name
from apps.triage.operation_states import LAYOUT, OperationState
from apps.triage.tasks import rescue
from poisonweb.embedded import process_control
from poisonweb.embedded.free_ports import free_port
from tests.acceptance.api_client import ApiClient
from tests.acceptance.earlier_commit_checkout import unpack
from tests.acceptance.product_process import ROOT, environment
from tests.acceptance.web_server_process import url_of_this_database
from tests.failure_report_builders import failure
from tests.integration.test_upgrade import connected_to, scratch
from tests.many_messages_by_sql import insert_messages
from tests.triage_operation_runner import counts_of
from tests.upgrade_lock_watch import LockWatch, watched
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

RELEASE = "9a46585"
MESSAGES = 1_000_000
PROBLEMS = 20
LARGE = MESSAGES // PROBLEMS
SIDE_BY_SIDE_SECONDS = 60.0
# Of a small operation. An older web confirms not many more within its time limit.
REQUEUED = 500
MOST_SECONDS = 2.0
TOPIC, LETTERS, REPORTED = "invoices", "letters", "reported"
OLDER_WEB = (
    *("-m", "uvicorn", "poisonweb.asgi:application", "--lifespan", "off"),
    *("--log-level", "error"),
)
WORKER = (
    *("-m", "celery", "-A", "poisonweb", "worker", "--loglevel", "WARNING"),
    *("--concurrency", "2", "--without-gossip", "--without-mingle"),
)


class ReleaseTree:
    """A release: its folder, and what its programs need."""

    def __init__(
        self, folder: Path, var: Path, redis_url: str, **settings: str
    ) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.environment = environment(
            DATABASE_URL=url_of_this_database(),
            CELERY_BROKER_URL=os.environ["CELERY_BROKER_URL"],
            POISONWEB_SECRET_KEY=os.environ["POISONWEB_SECRET_KEY"],
            POISONWEB_VAR=str(var),
            PYTHONPATH=f"{folder}:{folder / 'sdk'}",
            **settings,
        )

    def manage(self, *arguments: str) -> str:
        done = self._manage(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refusal(self, *arguments: str) -> str:
        """Return what a command says that refuses to do its work."""
        done = self._manage(*arguments)
        assert done.returncode
        return done.stderr.strip()

    def _manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (sys.executable, "manage.py", *arguments),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Run a program; it must not end by itself."""
        program = subprocess.Popen(
            (sys.executable, *arguments),
            cwd=self.folder,
            env=self.environment,
            process_group=0,
        )
        try:
            yield
            assert program.poll() is None, f"it ended by itself: {arguments}"
            program.terminate()
            program.wait(60)
        finally:
            process_control.kill_group(program.pid)
            program.wait()

    @contextmanager
    def web(self, key: str, *arguments: str) -> Iterator[ApiClient]:
        port = free_port()
        client = ApiClient(url=f"http://127.0.0.1:{port}", key=key)
        with self.running(*arguments, "--port", str(port)):
            wait_until(partial(answers, client), seconds=60)
            yield client


def answers(client: ApiClient) -> bool:
    with suppress(OSError):
        client.get("operations")
        return True
    return False


@pytest.fixture
def database(transactional_db: None) -> Iterator[None]:
    """Connect Django to an empty database."""
    name = f"{connection.settings_dict['NAME']}_upgrade"
    with scratch(name), connected_to(name):
        yield


@pytest.fixture
def session(database: None) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url_of_this_database()) as session:
        yield session


def of_problem(number: int) -> str:
    return f"is:open topic:{TOPIC} error:Unpayable{number:02}"


def preview(client: ApiClient, **selection: object) -> str:
    """Preview a requeue; return its token, before a worker has selected all of it."""
    answer = client.post("operations/preview", {"verb": "redrive", **selection})
    return str(answer["token"])


def confirm(client: ApiClient, token: str) -> int:
    """Confirm a preview as soon as a worker has selected all of it."""

    def accepted() -> int:
        try:
            body: dict[str, object] = {"token": token, "reason": "an upgrade"}
            return int(client.post("operations", body)["id"])
        except HTTPError as refusal:
            if refusal.code != HTTPStatus.CONFLICT:
                raise
            return 0

    return wait_until(accepted, seconds=120)


def set_up(client: ApiClient, redis_url: str) -> None:
    client.post("brokers", {"name": "redis", "kind": "redis_streams", "url": redis_url})
    client.post("topics", {"name": TOPIC, "broker": "redis"})
    queue = {"dead_letter_queue": "letters-dead", "mode": "capture"}
    client.post("topics", {"name": LETTERS, "broker": "redis", **queue})


class Minute:
    """What everybody does while both releases are at work."""

    def __init__(
        self, webs: list[ApiClient], stream: Redis, messages: Iterator[list[int]]
    ) -> None:
        self.webs = webs
        self.stream = stream
        self.messages = messages
        self.letters = 0
        self.reports = 0
        self.operations: list[int] = []

    def pass_by(self) -> None:
        until = time.monotonic() + SIDE_BY_SIDE_SECONDS
        while time.monotonic() < until:
            rescue.delay()
            self.write_letters(50)
            self.report(20)
            self.requeue(next(self.messages))
            time.sleep(1)

    def write_letters(self, number: int) -> None:
        for _ in range(number):
            self.stream.xadd(
                "letters-dead", {"body": f"letter {self.letters}".encode()}
            )
            self.letters += 1

    def report(self, number: int) -> None:
        members = [
            failure(
                clock.now(),
                topic=REPORTED,
                bookmark=f"{self.reports + each}-0",
                body=f"report {self.reports + each}".encode(),
            )
            for each in range(number)
        ]
        answer = random.choice(self.webs).post("failures", {"failures": members})
        assert {each["status"] for each in answer["results"]} == {"created"}
        self.reports += number

    def requeue(self, messages: list[int]) -> None:
        """Requeue some in either web, the same that made their preview."""
        web = random.choice(self.webs)
        self.operations.append(confirm(web, preview(web, ids=messages)))


def redrive_ids(stream: Redis) -> dict[bytes, set[str]]:
    """Return the redrive ids under which each body was sent."""
    ids: dict[bytes, set[str]] = defaultdict(set)
    start = "-"
    while page := stream.xrange(TOPIC, min=start, count=5_000):
        entries: Any = page
        for _, fields in entries:
            token = fields[b"x-poisonweb-redrive"].decode()
            ids[fields[b"body"]].add(str(redrive_of(token)))
        start = "(" + entries[-1][0].decode()
    return ids


def is_over(operations: list[int]) -> bool:
    rescue.delay()
    time.sleep(1)
    rows = Operation.objects.filter(pk__in=operations)
    return all(
        each.state == OperationState.DONE and each.layout == LAYOUT for each in rows
    )


@contextmanager
def kept_from_workers(operation_token: str) -> Iterator[None]:
    """Keep all workers from an operation, as one does that has just begun with it."""
    with psycopg.connect(url_of_this_database(), autocommit=True) as session:
        query = "SELECT id FROM triage_operation WHERE token = %s"
        ((number,),) = session.execute(query, [operation_token]).fetchall()
        session.execute("SELECT pg_advisory_lock(%s)", [key_of(lock_name(number))])
        yield


def messages_of(
    session: psycopg.Connection[Any], problem: int, *, at_once: int
) -> Iterator[list[int]]:
    """Give the messages of a problem, some at a time."""
    query = "SELECT id FROM poison_poison WHERE error_type = %s ORDER BY id"
    rows = session.execute(query, [f"Unpayable{problem:02}"]).fetchall()
    session.commit()
    for first in range(0, len(rows), at_once):
        yield [number for (number,) in rows[first : first + at_once]]


@dataclass(kw_only=True)
class UpgradeOutcome:
    """What became of the upgrade; `begun` are the operations of either release."""

    watch: LockWatch
    states: list[str]
    begun: list[int]
    letters: int
    reports: int


def upgrade(
    before: ReleaseTree,
    after: ReleaseTree,
    key: str,
    session: psycopg.Connection[Any],
    stream: Redis,
) -> UpgradeOutcome:
    """Upgrade at work, and go on with both releases, then with the newer one alone."""
    with ExitStack() as newer, ExitStack() as older:
        older_web = older.enter_context(before.web(key, *OLDER_WEB))
        set_up(older_web, before.redis_url)
        insert_messages(session, topic=TOPIC, number=MESSAGES, problems=PROBLEMS)
        older.enter_context(before.running("manage.py", "lanes"))
        older.enter_context(before.running(*WORKER))
        unconfirmed, waiting, running = (
            preview(older_web, q=of_problem(number)) for number in (3, 2, 1)
        )
        with kept_from_workers(waiting):
            begun = [confirm(older_web, token) for token in (waiting, running)]
            wait_until(lambda: stream.xlen(TOPIC), seconds=60)
            messages = next(messages_of(session, PROBLEMS, at_once=100))
            with watched(url_of_this_database(), poisons=messages) as watch:
                after.manage("prepare")
            states = [Operation.objects.get(pk=each).state for each in begun]
        newer_web = newer.enter_context(after.web(key, "-m", "poisonweb.web"))
        newer.enter_context(after.running("manage.py", "lanes"))
        newer.enter_context(after.running(*WORKER))
        begun.append(confirm(newer_web, unconfirmed))
        small = messages_of(session, 4, at_once=REQUEUED)
        minute = Minute([older_web, newer_web], stream, small)
        minute.pass_by()
        begun += minute.operations
        older.close()
        wait_until(partial(is_over, begun), seconds=900)
        letters = Poison.objects.filter(topic__name=LETTERS)
        wait_until(lambda: letters.count() >= minute.letters, seconds=60)
    return UpgradeOutcome(
        watch=watch,
        states=states,
        begun=begun,
        letters=minute.letters,
        reports=minute.reports,
    )


def test_an_upgrade_holds_nobody_up_and_loses_nothing(
    session: psycopg.Connection[Any],
    redis_url: str,
    stream: Redis,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = unpack(RELEASE, tmp_path_factory.mktemp("before"))
    before = ReleaseTree(folder, tmp_path / "before", redis_url)
    local = {"POISONWEB_LOOPBACK_BROKERS": "1"}
    after = ReleaseTree(ROOT, tmp_path / "after", redis_url, **local)
    before.manage("migrate", "--verbosity", "0")
    known_scopes = set(Scope) - {Scope.GATEWAY_CALL}  # newer than the release
    scopes = [word for scope in known_scopes for word in ("--scope", scope.value)]
    key = before.manage("create_api_key", "ci", *scopes)

    outcome = upgrade(before, after, key, session, stream)

    assert outcome.watch.longest_write < MOST_SECONDS
    assert outcome.watch.longest_lock[0] < MOST_SECONDS, outcome.watch.longest_lock
    assert outcome.states == ["queued", "running"]
    large, small = outcome.begun[:3], outcome.begun[3:]
    assert len(small) > 10
    sizes = {**dict.fromkeys(large, LARGE), **dict.fromkeys(small, REQUEUED)}
    ids = Counter(map(len, redrive_ids(stream).values()))
    assert ids == {1: sum(sizes.values())}
    assert {
        operation.pk: counts_of(operation)
        for operation in Operation.objects.filter(pk__in=outcome.begun)
    } == {number: {"sent": size} for number, size in sizes.items()}
    assert not Hold.objects.exists()
    captured = Poison.objects.exclude(topic__name=TOPIC)
    by_topic = Counter(captured.values_list("topic__name", "failures"))
    assert by_topic == {(LETTERS, 1): outcome.letters, (REPORTED, 1): outcome.reports}
    assert counts.check(now=clock.now()) == []
    refusal = after.refusal("migrate", "triage", "0003").splitlines()[-1]
    assert "There are operations of this release" in refusal
