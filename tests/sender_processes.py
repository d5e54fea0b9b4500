"""Sender processes on the database of a test, forked from one that has loaded them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from tests import preloaded_fork_server, preloaded_sender

FORKS = preloaded_fork_server.of(preloaded_sender.__name__)
DATABASE = ("NAME", "HOST", "PORT", "USER", "PASSWORD")


class SenderProcess:
    """A sender that can be frozen, killed and started again."""

    command = "sender"

    def __init__(self, log: Path) -> None:
        self.log = log
        self.start()

    def start(self) -> None:
        database = {name: connection.settings_dict[name] for name in DATABASE}
        self.process = FORKS.Process(
            target=preloaded_sender.main, args=(database, self.log, self.command)
        )
        self.process.start()

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def stop(self) -> int | None:
        """Let the sender's process end; return its exit code."""
        self.process.terminate()
        self.process.join(60)
        return self.process.exitcode

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class LaneProcess(SenderProcess):
    """The process of all lanes; it, too, can be killed and started again."""

    command = "lanes"


@contextmanager
def lane_process(folder: Path) -> Iterator[LaneProcess]:
    """Run all lanes in one process; kill what is left of it in the end."""
    process = LaneProcess(folder / "lanes.log")
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def senders(folder: Path, *, number: int) -> Iterator[list[SenderProcess]]:
    """Run some senders of deliveries; kill what is left of them in the end."""
    started = [SenderProcess(folder / f"sender-{n}.log") for n in range(number)]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
