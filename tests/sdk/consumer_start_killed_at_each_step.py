"""Start a consumer that has a death to settle, and kill it one step later each time.

`python consumer_start_killed_at_each_step.py FOLDER` prints, for each step, how often
the dead process's message is charged after the next start. A step is a call of the
operating system or of the database, or the return from one.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from poisonguard.journal.in_flight_journal import Journal

NAME = "orders/billing/billing-1"
NUMBER = 1


def main(root: Path) -> None:
    step, killed = 0, True
    died = root / "died"
    in_a_process(die_amid_a_message, died)
    while killed:
        step += 1
        folder = shutil.copytree(died, root / str(step))
        killed = in_a_process(start_until, folder, step)
        in_a_process(tell, folder)


def in_a_process(run: Callable[..., None], *arguments: object) -> bool:
    """Run something in a process of its own; tell whether that was killed."""
    child = os.fork()
    if not child:
        run(*arguments)
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def die_amid_a_message(folder: Path) -> None:
    journal = Journal(folder)
    journal.open(name=NAME)
    journal.words[0] = NUMBER


def start_until(folder: Path, last: int) -> None:
    remaining = last

    def step(_frame: FrameType, event: str, called: object) -> None:
        nonlocal remaining
        if event in ("c_call", "c_return") and is_step(called):
            remaining -= 1
            if not remaining:
                os.kill(os.getpid(), signal.SIGKILL)

    journal = Journal(folder)
    sys.setprofile(step)
    journal.open(name=NAME)
    sys.setprofile(None)


def is_step(called: object) -> bool:
    module = getattr(called, "__module__", None)
    owner = getattr(called, "__self__", None)
    return module in ("posix", "fcntl") or isinstance(owner, sqlite3.Connection)


def tell(folder: Path) -> None:
    journal = Journal(folder)
    journal.open(name=NAME)
    record = journal.attempts.of(b"", NUMBER, now=datetime.now(UTC))
    files = len(list(folder.glob("*.journal")))
    sys.stdout.write(f"{record.crashes if record else 0} {files}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
