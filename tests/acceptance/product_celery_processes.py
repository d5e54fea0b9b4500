"""Celery's worker and beat as processes, on the database of a test.

They are as in production, but for what they loaded before they were forked. A signal
goes to the whole process group, as from a supervisor.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection

from poisonweb.embedded import process_control
from tests import preloaded_fork_server
from tests.acceptance import preloaded_celery
from tests.waiting import wait_until

FORKS = preloaded_fork_server.of(preloaded_celery.__name__)


class Celery:
    """One Celery process with all its children."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._from = log.stat().st_size if log.exists() else 0
        self.process = FORKS.Process(
            target=preloaded_celery.main,
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

    def suspend(self) -> None:
        """Stop all Celery processes where they are, until they are killed."""
        os.killpg(self.group, signal.SIGSTOP)
        wait_until(
            lambda: all(state_of(pid) in "TZ" for pid in members_of_group(self.group))
        )

    def kill(self) -> None:
        process_control.kill_group(self.group)
        self.process.join()
        wait_until(lambda: not members_of_group(self.group))

    def _said(self) -> str:
        said = self._log.read_bytes() if self._log.exists() else b""
        return said[self._from :].decode("utf-8", "replace")


StartWorker = Callable[[], Celery]


def members_of_group(group: int) -> list[int]:
    stats = ((pid, process_control.stat(pid)) for pid in process_control.all_pids())
    return [pid for pid, fields in stats if fields and fields[2] == str(group)]


def state_of(pid: int) -> str:
    """Return the letter that the kernel gives for a process's state; Z if it ended."""
    fields = process_control.stat(pid)
    return fields[0] if fields else "Z"


@pytest.fixture
def beat(tmp_path: Path) -> Iterator[None]:
    schedule = str(tmp_path / "schedule")
    beat = Celery(tmp_path / "beat.log", "beat", "--schedule", schedule)
    yield
    beat.kill()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Start Celery workers as the supervisor does; the test's end ends them."""
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
        process_control.kill_group(worker.group)
        worker.process.join()
