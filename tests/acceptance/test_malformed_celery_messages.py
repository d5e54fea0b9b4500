"""What stands in Celery's queue and is no task of ours ends no worker."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from tests.acceptance.product_worker_with_test_task import MARK
from tests.waiting import wait_until

QUEUE = "poisonweb"


@dataclass
class RestartedWorker:
    """A real worker that is started again when it ends, as a supervisor would."""

    environment: Mapping[str, str]
    log: Path
    ends: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._start()

    def look(self) -> None:
        if self.process.poll() is not None:
            self.ends += 1
            self._start()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _start(self) -> None:
        command = (
            *(
                sys.executable,
                "-m",
                "tests.acceptance.product_worker_with_test_task",
                "worker",
            ),
            *("--queues", QUEUE, "--concurrency", "1"),
            *("--without-gossip", "--without-mingle"),
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log
            )


@pytest.fixture
def worker(redis_url: str, tmp_path: Path) -> Iterator[RestartedWorker]:
    environment = {**os.environ, "CELERY_BROKER_URL": redis_url, "MARKS": redis_url}
    worker = RestartedWorker(environment=environment, log=tmp_path / "worker.log")
    yield worker
    worker.stop()


def task(word: str, **changes: object) -> str:
    """Give a task as kombu writes it to Redis, with other headers or parts."""
    headers = {"lang": "py", "task": MARK, "id": f"id-{word}", "timelimit": [None] * 2}
    headers.update(changes.pop("headers", {}))  # type: ignore[call-overload] # of any kind
    body = json.dumps([[word], {}, {}])
    whole = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
            "delivery_mode": 2,
            "delivery_tag": f"tag-{word}",
            "priority": 0,
        },
        **changes,
    }
    return json.dumps(whole)


def with_headers(**headers: object) -> str:
    return task("bad", headers=headers)


HOSTILE: dict[str, str | bytes] = {
    "a time limit of text": with_headers(timelimit=["x", "y"]),
    "a time limit of one": with_headers(timelimit=[1]),
    "a time limit of objects": with_headers(timelimit=[{}, {}]),
    "a time limit that is text": with_headers(timelimit="forever"),
    "a time limit that is no number": with_headers(timelimit=[float("nan"), -1]),
    "an id that is a list": with_headers(id=["x"]),
    "a task that is a list": with_headers(task=["x"]),
    "an unknown task": with_headers(task="os.system"),
    "an eta of an object": with_headers(eta={"a": 1}),
    "an eta of nonsense": with_headers(eta="soon"),
    "an eta beyond all time": with_headers(eta="9999-12-31T23:59:59+00:00"),
    "an expiry of a list": with_headers(expires=[1]),
    "stamps of text": with_headers(stamped_headers=7, stamps="x"),
    "a group of text": with_headers(group=7, chord="x", errbacks="x", callbacks=7),
    "retries of text": with_headers(retries="x", root_id=[], parent_id={}),
    "headers of a list": task("bad", headers={})
    and json.dumps({**json.loads(task("bad")), "headers": ["x"]}),
    "properties that are missing": json.dumps({"body": "x"}),
    "properties of text": json.dumps({"body": "x", "properties": "x"}),
    "a delivery tag of a list": json.dumps(
        {**json.loads(task("bad")), "properties": {"delivery_tag": ["x"]}}
    ),
    "a body of another encoding": task("bad", **{"content-encoding": "rot13"}),
    "a body of another type": task("bad", **{"content-type": "application/x-python"}),
    "a body that is no base64": task("bad", body="***"),
    "a body that is no JSON": task("bad", body=base64.b64encode(b"{").decode()),
    "a body that is no triple": task("bad", body=base64.b64encode(b"7").decode()),
    "a body of deep lists": task("bad", body=base64.b64encode(b"[" * 100_000).decode()),
    "garbage": "garbage",
    "bytes": b"\x80\x04\x95",
    "a number": "7",
    "deep lists": "[" * 100_000,
    "a broken surrogate": '"\\ud800"',
}


def await_mark(worker: RestartedWorker, client: redis.Redis, word: str) -> None:
    """Wait until a task left its mark, and start the worker again if it ends."""

    def is_marked() -> bool:
        worker.look()
        return word.encode() in client.lrange("marks", 0, -1)

    wait_until(is_marked, describe=lambda: f"no mark of {word!r}")


def test_a_worker_goes_on_after_a_message_that_is_no_task(
    worker: RestartedWorker, redis_url: str
) -> None:
    """With one place to work in, a place that is not given back would show as well."""
    ended: list[str] = []
    with redis.Redis.from_url(redis_url) as client:
        client.lpush(QUEUE, task("first"))
        await_mark(worker, client, "first")
        for name, hostile in HOSTILE.items():
            ends, behind = worker.ends, f"behind {name}"
            client.lpush(QUEUE, hostile, task(behind))
            await_mark(worker, client, behind)
            ended += [name] if worker.ends > ends else []

        # A task that left its mark is acknowledged a moment later.
        wait_until(lambda: not (client.llen(QUEUE) or client.hlen("unacked")))
        marks = client.lrange("marks", 0, -1)

    assert ended == []
    assert len(marks) >= len(HOSTILE) + 1
