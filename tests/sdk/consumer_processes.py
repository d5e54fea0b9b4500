"""Starts real consumers to be killed, and reads what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from poisonguard.journal.in_flight_journal import Journal
from tests import preloaded_fork_server
from tests.sdk import journal_only_consumer
from tests.sdk.journal_only_consumer import JournalOnlyPlan

SDK = Path(journal_only_consumer.__file__).parents[2] / "sdk"
TIMEOUT = 300.0  # each step waits for the disk, which others use, too
NAME = "orders/billing/billing-1"
# Of one that has loaded everything a start costs milliseconds.
FORKS = preloaded_fork_server.of(journal_only_consumer.__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumers:
    """Processes of one consumer, with one journal folder."""

    folder: Path
    settled: Path

    @classmethod
    def under(cls, path: Path) -> Consumers:
        return cls(folder=path / "journal", settled=path / "settled")

    def plan(self, **chosen: object) -> str:
        plan: JournalOnlyPlan = {
            "folder": str(self.folder),
            "name": NAME,
            "settled": str(self.settled),
            "messages": 3,
        }
        return json.dumps({**plan, **chosen})

    def command(self, **chosen: object) -> list[str]:
        return [sys.executable, journal_only_consumer.__file__, self.plan(**chosen)]

    def start(self, **chosen: object) -> subprocess.Popen[bytes]:
        return popen(self.command(**chosen))

    def run(self, **chosen: object) -> int:
        """Run a consumer to its end; return its exit code."""
        with self.start(**chosen) as process:
            ended(process)
        return process.returncode

    def fork(self, **chosen: object) -> BaseProcess:
        """Start a consumer by a fork, without exec."""
        process = FORKS.Process(
            target=journal_only_consumer.main, args=[self.plan(**chosen)]
        )
        process.start()
        return process

    def run_fork(self, **chosen: object) -> int:
        """Fork a consumer and wait for its end; return its exit code."""
        process = self.fork(**chosen)
        process.join(TIMEOUT)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError
        return process.exitcode

    def next_start(self, *, slots: int = 1) -> Journal:
        """Return the journal of a process of the same name that starts now."""
        journal = Journal(self.folder)
        journal.open(name=NAME, slots=slots)
        return journal

    def count(self, what: str) -> int:
        """Return how many message numbers of this kind were noted."""
        written = self.settled.read_bytes() if self.settled.exists() else b""
        return written.count(f"{what} ".encode())

    def noted(self, what: str) -> list[int]:
        """Return the message numbers noted as of this kind, in order."""
        lines = self.settled.read_text().splitlines() if self.settled.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(f"{what} ")]


def popen(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(SDK)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def python(code: str, *arguments: object) -> str:
    """Run lines of Python as a process; return what they print, however it ends."""
    return program("-c", code, *arguments)


def program(*arguments: object) -> str:
    """Run a program; return what it prints, however it ends."""
    with popen([sys.executable, *map(str, arguments)]) as process:
        said, complaint = ended(process)
    assert "Traceback" not in complaint, complaint
    return said


def ended(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Wait for a process to end, or end it; return what it wrote."""
    try:
        said, complaint = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return said.decode(), complaint.decode()
