"""Consumers and a server of two releases: each gets on with the other.

The sample runs beside a topic that replays, which consumers of both releases read: for
an hour each way. Only the soak does so, for it needs the history of the repository.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from redis import Redis

from poisonweb.sample.event_ledger import What, read, tally
from poisonweb.sample.producer_messages import CONTENT_TOPIC, ORDERS, SHIPMENTS
from tests.acceptance import replaying_consumer
from tests.acceptance.earlier_commit_checkout import unpack
from tests.acceptance.product_process import ROOT, environment
from tests.acceptance.replaying_consumer import UNLUCKY
from tests.acceptance.web_server_process import (
    CONSUMER,
    Web,
    api_key,
    url_of_this_database,
)
from tests.integration.test_upgrade import scratch
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.django_db(transaction=True),
]

OTHER_RELEASE = "9a46585"
TOPICS = {CONTENT_TOPIC, ORDERS, SHIPMENTS}
SECONDS, ROUND_SECONDS = 3_600.0, 60.0
OLDER = ("consumers", "server")
A_ROUND = 20  # messages


@dataclass(frozen=True, kw_only=True)
class ReleaseServer:
    """A running server, whatever its release."""

    web: Web
    key: str
    database_url: str

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url) as session:
            return session.execute(statement).fetchall()


@dataclass(kw_only=True)
class OlderWeb(Web):
    """The server of the older release, on a database that it has made its own."""

    tree: Path
    database_url: str

    def manage(self, *arguments: str) -> str:
        return self._run("manage.py", *arguments).strip()

    def start(self) -> None:
        self.process = subprocess.Popen(
            (
                *(sys.executable, "-m", "uvicorn", "poisonweb.asgi:application"),
                *("--lifespan", "off", "--port", str(self.port)),
                *("--log-level", "error", "--timeout-graceful-shutdown", "1"),
            ),
            cwd=self.tree,
            env=self._environment(),
        )
        wait_until(self.answers)

    def _run(self, *arguments: str) -> str:
        return subprocess.run(
            (sys.executable, *arguments),
            cwd=self.tree,
            env=self._environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    def _environment(self) -> dict[str, str]:
        return environment(
            DATABASE_URL=self.database_url,
            CELERY_BROKER_URL=os.environ["CELERY_BROKER_URL"],
            POISONWEB_SECRET_KEY="for tests only",
            POISONWEB_VAR=str(self.tree / "var"),
            PYTHONPATH=f"{self.tree}:{self.tree / 'sdk'}",
        )


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(OTHER_RELEASE, tmp_path_factory.mktemp("older"))


@contextmanager
def of_this_release() -> Iterator[ReleaseServer]:
    web = Web()
    web.start()
    try:
        yield ReleaseServer(web=web, key=api_key(), database_url=url_of_this_database())
    finally:
        web.stop()


@contextmanager
def of_the_older_release(tree: Path) -> Iterator[ReleaseServer]:
    name = f"{connection.settings_dict['NAME']}_older"
    with scratch(name):
        url = url_of_this_database().rpartition("/")[0] + f"/{name}"
        web = OlderWeb(tree=tree, database_url=url)
        web.manage("migrate", "--verbosity", "0")
        scopes = (part for scope in CONSUMER for part in ("--scope", scope.value))
        key = web.manage("create_api_key", "consumer", *scopes)
        web.start()
        try:
            yield ReleaseServer(web=web, key=key, database_url=url)
        finally:
            web.stop()


class Sample:
    """The programs of the sample, out of one tree."""

    def __init__(
        self, tree: Path, server: ReleaseServer, *, var: Path, redis_url: str
    ) -> None:
        (var / "sample-api-key").write_text(server.key)
        self.ledger = var / "sample-ledger.jsonl"
        self._redis_url = redis_url
        self._tree = tree
        self._environment = environment(
            PORT=str(server.web.port),
            POISONWEB_VAR=str(var),
            POISONWEB_REDIS_URL=redis_url,
            POISONGUARD_JOURNAL=str(var / "journal"),
            PYTHONPATH=f"{tree}:{tree / 'sdk'}",
        )
        shipping = (sys.executable, "-m", "poisonweb.sample.shipping")
        self._programs = [
            self._start("-m", "poisonweb.sample"),
            self._start("-m", "poisonguard", "run", "--", *shipping),
        ]

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            (sys.executable, *arguments), cwd=self._tree, env=self._environment
        )

    def rest(self) -> None:
        """Let nothing more be produced, and all of it be settled."""
        self._programs[0].send_signal(signal.SIGUSR1)
        with Redis.from_url(self._redis_url) as redis:
            wait_until(lambda: all(is_settled(redis, topic) for topic in TOPICS))

    def end(self) -> None:
        for program in self._programs:
            assert program.poll() is None, "it ended by itself"
            program.terminate()
        for program in self._programs:
            program.wait(60)

    def produced(self) -> Counter[str]:
        lines = read(self.ledger)
        return Counter(line.topic for line in lines if line.what is What.PRODUCED)

    def failed(self) -> dict[str, int]:
        return {topic: each.poisons for topic, each in tally(read(self.ledger)).items()}


def is_settled(redis: Redis, topic: str) -> bool:
    newest: Any = redis.xrevrange(topic, count=1)
    groups: Any = redis.xinfo_groups(topic) if newest else []
    return bool(groups) and all(
        group["last-delivered-id"] == newest[0][0] and not group["pending"]
        for group in groups
    )


def consume(
    tree: Path, server: ReleaseServer, client_name: str, last: int
) -> dict[int, str]:
    """Run a consumer of `replayed` with the SDK of a tree, to its end."""
    arguments = (server.web.url, server.key, client_name, str(last))
    done = subprocess.run(
        (sys.executable, replaying_consumer.__file__, *arguments),
        env=environment(PYTHONPATH=str(tree / "sdk")),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return {int(number): outcome for number, outcome in json.loads(done.stdout).items()}


def rounds(trees: Sequence[Path], server: ReleaseServer) -> int:
    """Let consumers of both releases read on until it is time; give how far."""
    until, last = time.monotonic() + SECONDS, 0
    while not last or time.monotonic() < until:
        first, last = last + 1, last + A_ROUND
        finder, *others = (
            consume(tree, server, f"billing-{place}", last)
            for place, tree in enumerate(trees)
        )
        numbers = range(first, last + 1)
        # What was settled before does not come again, and nothing is missed.
        assert finder == {n: "handled" if n % UNLUCKY else "poisoned" for n in numbers}
        for other in others:
            assert other == {
                n: "handled" if n % UNLUCKY else "skipped" for n in numbers
            }
        time.sleep(min(ROUND_SECONDS, max(0.0, until - time.monotonic())))
    return last


def poisons(server: ReleaseServer) -> dict[str, int]:
    return dict(
        server.rows(
            "SELECT topic.name, count(*) FROM poison_poison poison"
            " JOIN brokers_topic topic ON topic.id = poison.topic_id GROUP BY 1"
        )
    )


def counted(server: ReleaseServer) -> dict[str, int]:
    rows = server.rows(
        "SELECT topic.name, sum(handled + failed) FROM capture_counter counter"
        " JOIN brokers_topic topic ON topic.id = counter.topic_id GROUP BY 1"
    )
    return {topic: int(number) for topic, number in rows}


@pytest.mark.parametrize("which", OLDER)
def test_two_releases_work_side_by_side(
    older: Path, redis_url: str, tmp_path: Path, which: str
) -> None:
    ours, theirs = (older, ROOT) if which == "consumers" else (ROOT, older)
    with ExitStack() as stack:
        server = stack.enter_context(
            of_this_release() if which == "consumers" else of_the_older_release(older)
        )
        sample = Sample(ours, server, var=tmp_path, redis_url=redis_url)
        stack.callback(sample.end)

        last = rounds((ours, theirs, ours), server)
        sample.rest()
        produced, failed = sample.produced(), sample.failed()
        # A minute is counted once it is over.
        exact = {topic: produced[topic] for topic in TOPICS if topic != SHIPMENTS}
        wait_until(lambda: exact.items() <= counted(server).items(), seconds=180)

        assert set(produced) == TOPICS
        assert poisons(server) == {**failed, replaying_consumer.TOPIC: last // UNLUCKY}
        skips = "SELECT count(*) FROM poison_skip WHERE removed_revision IS NULL"
        assert server.rows(skips) == [(last // UNLUCKY,)]
