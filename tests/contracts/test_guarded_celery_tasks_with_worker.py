"""Guarded tasks of Celery on a real worker: those that kill it, fail, or give up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from poisonguard.contract import Cause
from poisonguard.testing import FakePoisonweb
from tests.contracts.sdk_example_processes import PATIENCE, LoggedProgram

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Worker(LoggedProgram):
    """A worker with several processes, and the tasks that it began."""

    def __init__(self, poisonweb: FakePoisonweb, folder: Path) -> None:
        self.queue = f"deadly-{uuid4().hex}"
        self.ledger, self.log = folder / "ledger", folder / "log"
        self.ledger.touch()
        broker = os.environ["CELERY_BROKER_URL"].rpartition("/")[0] + "/14"
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{HERE}:{ROOT / 'sdk'}",
            "BROKER_URL": broker,
            "LEDGER": str(self.ledger),
            "POISONGUARD_URL": poisonweb.url,
            "POISONGUARD_API_KEY": poisonweb.key,
            "POISONGUARD_TOPIC": self.queue,
            "POISONGUARD_CONSUMER_GROUP": "billing",
            "POISONGUARD_JOURNAL": str(folder / "journal"),
            "POISONGUARD_START_TIMEOUT": "5",
        }

    def start(self, *, processes: int) -> None:
        number = str(processes)
        options = ("-Q", self.queue, "-c", number, "-l", "INFO", "--without-mingle")
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--", sys.executable),
                    *("-m", "celery", "-A", "deadly_tasks", "worker", *options),
                ],
                cwd=HERE,
                env=self.environ,
                stdout=output,
                stderr=output,
            )

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)

    def send(self, *orders: dict[str, Any]) -> None:
        program = (
            "import json, sys, deadly_tasks\n"
            "for order in json.loads(sys.argv[2]):\n"
            "    deadly_tasks.charge.apply_async([order], queue=sys.argv[1])"
        )
        subprocess.run(
            [sys.executable, "-c", program, self.queue, json.dumps(orders)],
            cwd=HERE,
            env=self.environ,
            check=True,
        )

    @property
    def begun(self) -> Counter[str]:
        return Counter(self.ledger.read_text().split())


@pytest.fixture
def worker(
    poisonweb: FakePoisonweb, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Worker]:
    worker = Worker(poisonweb, tmp_path)
    worker.start(processes=getattr(request, "param", 2))
    yield worker
    worker.stop()


def test_a_task_that_kills_its_process_is_poison_and_no_other_is(
    worker: Worker, poisonweb: FakePoisonweb
) -> None:
    worker.send({"id": 1, "kills": True}, *({"id": n} for n in range(2, 8)))

    worker.until(lambda: poisonweb.failures)
    worker.until(lambda: len(worker.begun) == 7)

    (failure,) = poisonweb.failures
    assert failure.cause is Cause.CRASH
    assert json.loads(failure.body)[0] == [{"id": 1, "kills": True}]
    assert 2 <= worker.begun["1"] <= 4
    worker.until(lambda: "the task" in worker.said and "is poisoned" in worker.said)


# Of two processes, the last to run the task may not know yet how often the other did;
# it learns that at the next delivery, which has no error.
@pytest.mark.parametrize("worker", [1], indirect=True)
def test_a_task_that_fails_comes_again_and_its_last_error_is_celerys(
    worker: Worker, poisonweb: FakePoisonweb
) -> None:
    worker.send(
        {"id": 1, "fails": 1}, {"id": 2, "fails": 9}, {"id": 3, "ignores": True}
    )

    worker.until(lambda: worker.begun == {"1": 2, "2": 3, "3": 1})
    worker.until(lambda: poisonweb.failures)

    (failure,) = poisonweb.failures
    assert failure.cause is Cause.EXHAUSTED
    assert json.loads(failure.body)[0] == [{"id": 2, "fails": 9}]
    worker.until(lambda: "raised unexpected: ValueError('not yet')" in worker.said)


def test_a_task_is_retried_when_its_guard_could_not_start(
    worker: Worker, poisonweb: FakePoisonweb
) -> None:
    with poisonweb.away():
        worker.send({"id": 1})
        worker.until(lambda: "Retry in" in worker.said)
        assert worker.begun == {}

    worker.until(lambda: worker.begun == {"1": 1})
