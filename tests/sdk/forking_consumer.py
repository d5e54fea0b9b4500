"""A parent that starts a guard, and forks a new child when one dies.

    python forking_consumer.py URL FOLDER CHILDREN BOOKMARK...

Each child reads the topic from its beginning. A message whose name begins with `killer`
ends the child that handles it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from poisonguard import Guard, RetryPolicy
from poisonguard.readers.plain import PlainReader

URL, FOLDER, CHILDREN, *BOOKMARKS = sys.argv[1:]
SETTLED = Path(FOLDER, "settled")
STARTED = Path(FOLDER, "started")
KILLERS = [bookmark for bookmark in BOOKMARKS if bookmark.startswith("killer")]
MOST_DEATHS = 50 * len(KILLERS)


def append(file: Path, line: str) -> None:
    with file.open("a") as opened:
        opened.write(f"{line}\n")


def handle(message: dict[str, str]) -> None:
    append(STARTED, message["bookmark"])
    if message["bookmark"] in KILLERS:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.005)


def consume(guard: Guard) -> None:
    for bookmark in BOOKMARKS:
        if guard.handle({"bookmark": bookmark, "body": "{}"}, handle).settles:
            append(SETTLED, bookmark)


def fork(guard: Guard) -> None:
    if not os.fork():
        consume(guard)
        guard.close()
        os._exit(0)


def main() -> None:
    guard = Guard(
        topic="orders",
        consumer_group="billing",
        client_name="billing-1",
        url=URL,
        api_key="pw_test_key",
        journal=Path(FOLDER, "journal"),
        reader=PlainReader(replays=True),
        policy=RetryPolicy(max_attempts=5, base=0.01, cap=0.01),
    )
    with guard:
        for _ in range(int(CHILDREN)):
            fork(guard)
        running, deaths = int(CHILDREN), 0
        while running:
            _, status = os.wait()
            if os.WIFSIGNALED(status) and deaths < MOST_DEATHS:
                deaths += 1
                fork(guard)  # at once: what the dead one left has just been let go of
            else:
                running -= 1


if __name__ == "__main__":
    main()
