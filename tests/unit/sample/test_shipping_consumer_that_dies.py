"""The consumer that dies, as the program it is in an installation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from poisonweb import env
from poisonweb.embedded import process_control, process_plan
from poisonweb.sample import producer_messages
from poisonweb.sample.consumers_and_their_topics import DISPATCH as OF
from poisonweb.sample.event_ledger import Tally, What, read, tally
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.unit.sample.settled_redis_topic_helper import is_settled
from tests.waiting import wait_until

Start = Callable[[], "subprocess.Popen[bytes]"]
REDRIVE = "123e4567-e89b-12d3-a456-426614174000.0a1b"
GOOD, DEADLY = producer_messages.shipment(1), producer_messages.shipment(7)


@pytest.fixture
def start(redis: Redis, redis_url: str, tmp_path: Path, port: int) -> Iterator[Start]:
    started = []

    def run() -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "POISONWEB_VAR": str(tmp_path),
            "POISONWEB_REDIS_URL": redis_url,
            "DATABASE_URL": "postgresql://p@db.example/p",
            "CELERY_BROKER_URL": "amqp://broker.example",
            "POISONWEB_DEMO": "1",
            "PORT": str(port),
        }
        installation = process_plan.make(env.load(environ), port=port, environ=environ)
        (program,) = (p for p in installation.processes if p.name == "shipping")
        started.append(subprocess.Popen(program.command, env=program.environment))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def send(
    redis: Redis, *messages_to_send: producer_messages.SampleMessage, redrive: str = ""
) -> None:
    for message in messages_to_send:
        fields = message.fields
        if redrive:
            fields["x-poisonweb-redrive"] = redrive
        redis.xadd(OF.topic, fields)


def consumer_of(supervisor: subprocess.Popen[bytes]) -> int | None:
    ours = str(supervisor.pid)
    stats = ((pid, process_control.stat(pid)) for pid in process_control.all_pids())
    return next((pid for pid, fields in stats if fields and fields[1] == ours), None)


def test_a_shipment_that_kills_is_poison_after_two_deaths(
    start: Start, redis: Redis, server: FakeServer, tmp_path: Path
) -> None:
    send(redis, GOOD, DEADLY, GOOD)

    start()
    wait_until(lambda: is_settled(redis, OF.topic))

    (report,) = server.reports.failures.values()
    assert (report["cause"], report["crashes"], report["failures"]) == ("crash", 2, 0)
    raised = report["exception"]
    assert raised["type"] == "ProcessDied"
    assert raised["message"] == "The process ended with exit code 134"
    noted = list(read(tmp_path / "sample-ledger.jsonl"))
    failed = [line.bookmark for line in noted if line.what is What.FAILED]
    assert failed == [report["bookmark"]]


def test_one_that_kills_again_after_a_requeue_comes_back(
    start: Start, redis: Redis, server: FakeServer, tmp_path: Path
) -> None:
    send(redis, DEADLY, redrive=REDRIVE)

    start()
    wait_until(lambda: is_settled(redis, OF.topic))

    (report,) = server.reports.failures.values()
    assert (report["cause"], report["redrive"]) == ("crash", REDRIVE)
    counted = tally(read(tmp_path / "sample-ledger.jsonl"))
    again = Tally(poisons=0, recurrences=1, confirmations=0)
    assert counted == {OF.topic: again}


def test_nothing_is_left_of_it_when_it_is_asked_to_end(
    start: Start, redis: Redis
) -> None:
    send(redis, GOOD)
    supervisor = start()
    wait_until(lambda: is_settled(redis, OF.topic))
    consumer: Any = consumer_of(supervisor)

    supervisor.terminate()

    assert supervisor.wait(60) == 0
    assert not (process_control.PROC / str(consumer)).exists()


def test_it_ends_with_a_supervisor_that_is_killed(start: Start, redis: Redis) -> None:
    send(redis, GOOD)
    supervisor = start()
    wait_until(lambda: is_settled(redis, OF.topic))
    consumer: Any = consumer_of(supervisor)

    os.kill(supervisor.pid, signal.SIGKILL)

    wait_until(lambda: process_control.Identity.of(consumer) is None)


def test_says_what_is_missing(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "poisonweb.sample.shipping")
    environment = {n: v for n, v in os.environ.items() if n != "POISONWEB_REDIS_URL"}

    said = subprocess.run(
        command,
        env={**environment, "POISONWEB_VAR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.returncode == 1
    assert said.stderr == "poisonweb.sample.shipping: POISONWEB_REDIS_URL is not set.\n"
