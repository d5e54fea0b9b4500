"""A consumer with nothing but a journal, run as a process of its own to be killed.

`python journal_only_consumer.py PLAN`: the plan says which messages there are and what
each of them does to its process. A handled or poisoned message is settled by a line in
a file.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from poisonguard.journal.in_flight_journal import Journal
from poisonguard.supervision.watchdog import Watchdog

CRASH_LIMIT = 2
WORK = 0.004
LINE = 32  # bytes, a part of a page


class JournalOnlyPlan(TypedDict, total=False):
    folder: str  # "auto": what the supervisor says
    name: str
    settled: str
    messages: int
    slots: int
    ways: dict[str, str]  # number -> what it does
    handler_timeout: float
    sleep: float  # in each handler
    ignores_sigterm: bool


def crash() -> None:
    ctypes.string_at(0)


def crash_in_a_thread() -> None:
    threading.Thread(target=crash).start()
    time.sleep(60)


def hold_the_interpreter() -> None:
    # Backtracks for ever, in C, and lets no other thread run.
    re.match("(a+)+$", "a" * 60 + "b")


def told_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGKILL)


WAYS: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
    "segv": crash,
    "segv in a thread": crash_in_a_thread,
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "exec itself": lambda: os.execv(sys.executable, [sys.executable, *sys.argv]),
    "hang": lambda: time.sleep(60),
    "hang in C": hold_the_interpreter,
    "fork": lambda: os.fork() or os._exit(0),
    "told to stop": told_to_stop,
}


class JournalOnlyConsumer:
    def __init__(self, plan: JournalOnlyPlan) -> None:
        self._plan = plan
        self._settled = Path(plan["settled"])
        self._journal = Journal(plan["folder"])
        self._journal.open(name=plan["name"], slots=plan.get("slots", 1))
        self._attempts = self._journal.attempts
        for death in self._journal.deaths:
            self._note("blamed", *death.numbers)

    def run(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: self._journal.stopping())
        if self._plan.get("ignores_sigterm"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "handler_timeout" in self._plan:
            limit = self._plan["handler_timeout"]
            Watchdog(self._journal, handler_timeout=limit).start()
        every, done = range(1, self._plan["messages"] + 1), self._done()
        # As the guard does: who may have killed its process runs alone.
        suspects = {n for n in self._attempts.suspects - done if n in every}
        self._work(0, sorted(suspects))
        # One iterator for all: what it gives to one of them it gives to no other.
        queue, over = iter(every), done | suspects
        slots = range(self._plan.get("slots", 1))
        threads = [
            threading.Thread(target=self._work, args=(slot, take(queue, over)))
            for slot in slots[1:]
        ]
        for thread in threads:
            thread.start()
        self._work(0, take(queue, over))
        for thread in threads:
            thread.join()
        self._journal.close()

    def _done(self) -> set[int]:
        lines = self._settled.read_text().splitlines() if self._settled.exists() else []
        noted = [line.split() for line in lines]
        return {int(n) for kind, n in noted if kind in ("handled", "poisoned")}

    def _work(self, slot: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            identity = str(number).encode()
            if self._is_poison(identity, number):
                self._note("poisoned", number)
                self._forget(identity, number)
                continue
            self._journal.words[slot] = number
            self._note("started", number)
            self._handle(number)
            self._note("ended", number)
            self._journal.words[slot] = 0
            # Before it is settled, or its record could stay for good.
            self._forget(identity, number)
            self._note("handled", number)

    def _is_poison(self, identity: bytes, number: int) -> bool:
        if number not in self._attempts.suspects:
            return False
        record = self._attempts.of(identity, number, now=datetime.now(UTC))
        return record is not None and record.crashes >= CRASH_LIMIT

    def _handle(self, number: int) -> None:
        way = self._plan.get("ways", {}).get(str(number))
        if way is not None:
            WAYS[way]()
        time.sleep(self._plan.get("sleep", WORK * random.random()))

    def _forget(self, identity: bytes, number: int) -> None:
        if number in self._attempts.suspects:
            self._attempts.forget(identity, number)

    def _note(self, what: str, *numbers: int) -> None:
        with self._settled.open("a") as file:
            file.writelines(line(f"{what} {number}") for number in numbers)


def line(text: str) -> str:
    """Make a line that a kill cannot cut: it does so only where a page ends."""
    return f"{text:<{LINE - 1}}\n"


def take(queue: Iterator[int], over: Set[int]) -> Iterator[int]:
    return (number for number in queue if number not in over)


def main(plan: str) -> None:
    JournalOnlyConsumer(json.loads(plan)).run()


if __name__ == "__main__":
    main(sys.argv[1])
