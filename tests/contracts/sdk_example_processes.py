"""Run the consumers of `sdk/examples` as processes, in the folder they are in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.brokers.moto import REGION
from tests.contracts.sqs_topic_fixture import SqsStage
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "sdk/examples"
PATIENCE = 120.0
GOOD = {"id": 1, "total": 5}
LATER = {"id": 2, "total": 5}
BAD = {"id": 13}  # without a total


class LoggedProgram:
    """A program whose output goes to a file."""

    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; where it does not come true, show the output."""
        wait_until(condition, seconds=PATIENCE, describe=lambda: self.said)


class ExampleConsumer(LoggedProgram):
    """One consumer: a process that can be restarted, and its output."""

    def __init__(self, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.command, self.environ, self.log = command, environ, log

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, *self.command],
                cwd=EXAMPLES,
                env=self.environ,
                stdout=output,
                stderr=output,
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(PATIENCE)
        assert status == 0, self.said

    def charged(self, order: dict[str, Any]) -> int:
        return self.said.count(f"charged {order['total']} for order {order['id']}")


def environ_of(url: str, topic: str, folder: Path) -> dict[str, str]:
    """Return the environment of an example; the url holds the key."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "sdk"),
        "POISONGUARD_URL": url,
        "POISONGUARD_TOPIC": topic,
        "POISONGUARD_CONSUMER_GROUP": "billing",
        "POISONGUARD_JOURNAL": str(folder / "journal"),
        "POISONGUARD_HOLD_FOR": "20",
    }


def environ_of_boto3(stage: SqsStage) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": stage.server.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
    }
