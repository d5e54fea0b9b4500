"""The sample as a process: killed, stopped, and with its servers away."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from poisonweb.sample.event_ledger import Tally, read, tally
from poisonweb.sample.producer_messages import CONTENT_TOPIC, ORDERS
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.unit.sample.settled_redis_topic_helper import is_settled
from tests.waiting import wait_until

Start = Callable[..., "subprocess.Popen[bytes]"]
KILLS = 200 if os.environ.get("SOAK") else 20
GRACE = 10.0


@pytest.fixture
def start(redis: Redis, redis_url: str, tmp_path: Path, port: int) -> Iterator[Start]:
    started = []

    def run(*options: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            (sys.executable, "-m", "poisonweb.sample", *options),
            env={
                **os.environ,
                "POISONWEB_VAR": str(tmp_path),
                "POISONWEB_REDIS_URL": redis_url,
                "PORT": str(port),
            },
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def is_at_rest(redis: Redis) -> bool:
    return all(is_settled(redis, topic) for topic in (CONTENT_TOPIC, ORDERS))


def number_of(redis: Redis) -> int:
    number: Any = redis.get(f"{CONTENT_TOPIC}:numbers")
    return int(number or 0)


def has_sent_more_than(number: int, redis: Redis) -> bool:
    return number_of(redis) > number


def poisoned(server: FakeServer, topic: str) -> list[str]:
    failures = list(server.reports.failures.values())
    return [report["bookmark"] for report in failures if report["topic"] == topic]


def test_kills_lose_nothing_and_the_ledger_stays_true(
    start: Start, redis: Redis, server: FakeServer, tmp_path: Path
) -> None:
    # A new release might handle what was reported in the moment before a kill.
    one_release = ("--release-after", "3600")
    for _ in range(KILLS):
        process = start("--rate", "1000", *one_release)
        wait_until(partial(has_sent_more_than, number_of(redis), redis))
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        process.wait()
    start("--rate", "0.01", *one_release)
    wait_until(lambda: is_at_rest(redis))

    counted = tally(read(tmp_path / "sample-ledger.jsonl"))

    for topic in (CONTENT_TOPIC, ORDERS):
        dead = set(poisoned(server, topic))
        assert counted[topic] == Tally(
            poisons=len(dead), recurrences=0, confirmations=0
        )
    contents: Any = redis.xrange(CONTENT_TOPIC)
    unlucky = {i.decode() for i, f in contents if int(f[b"body"][7:-1]) % 13 == 0}
    assert unlucky == set(poisoned(server, CONTENT_TOPIC)) != set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_when_asked_before_a_supervisor_would_kill_it(
    start: Start, redis: Redis, number: signal.Signals
) -> None:
    process = start()
    wait_until(lambda: bool(redis.exists(ORDERS)))

    process.send_signal(number)

    assert process.wait(GRACE) == 0


def test_sigusr1_ends_the_producing_only(
    start: Start, redis: Redis, server: FakeServer
) -> None:
    process = start("--rate", "100")
    wait_until(lambda: len(poisoned(server, ORDERS)) > 0)

    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: is_at_rest(redis))
    before = redis.get(f"{ORDERS}:numbers")
    bookmark: Any = redis.xadd(ORDERS, {"body": "one more"})
    wait_until(lambda: bookmark.decode() in poisoned(server, ORDERS))

    assert redis.get(f"{ORDERS}:numbers") == before


def test_goes_on_when_redis_lost_its_mind(
    start: Start, redis: Redis, server: FakeServer
) -> None:
    process = start("--rate", "100")
    wait_until(lambda: len(poisoned(server, ORDERS)) > 0)

    redis.flushall()
    redis.client_kill_filter(_type="normal", skipme=True)
    before = len(poisoned(server, ORDERS))

    wait_until(lambda: len(poisoned(server, ORDERS)) > before + 5)
    assert process.poll() is None


def test_goes_on_when_poisonweb_comes_back(
    start: Start, redis: Redis, server: FakeServer
) -> None:
    process = start("--rate", "100")
    wait_until(lambda: len(poisoned(server, ORDERS)) > 0)

    server.stop()
    wait_until(partial(has_sent_more_than, number_of(redis) + 50, redis))
    before = len(poisoned(server, ORDERS))
    server.start()

    wait_until(lambda: len(poisoned(server, ORDERS)) > before + 5)
    assert process.poll() is None


def test_all_parts_stop_when_one_of_them_fails(
    start: Start, server: FakeServer, tmp_path: Path
) -> None:
    process = start("--rate", "100")
    wait_until(lambda: len(poisoned(server, ORDERS)) > 0)

    nowhere = tmp_path / "nowhere"
    nowhere.symlink_to(tmp_path / "no such folder" / "ledger")
    nowhere.replace(tmp_path / "sample-ledger.jsonl")

    assert process.wait(60) == 1


def test_says_what_is_missing(tmp_path: Path) -> None:
    environment = {n: v for n, v in os.environ.items() if n != "POISONWEB_REDIS_URL"}

    said = subprocess.run(
        (sys.executable, "-m", "poisonweb.sample"),
        env={**environment, "POISONWEB_VAR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.returncode == 1
    assert said.stderr == "poisonweb.sample: POISONWEB_REDIS_URL is not set.\n"
