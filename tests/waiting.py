"""Wait for a condition, with a limit that no busy machine reaches."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

# A condition that comes true at once is seen at once; one that costs a query or a look
# at all processes is not evaluated too often.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.1
TICK, LONGEST_TICK = 0.02, 0.1


def wait_until(
    holds: Callable[[], T],
    *,
    seconds: float = 60.0,
    describe: Callable[[], object] = lambda: "",
) -> T:
    """Return the first true value of `holds`; fail with `describe` after `seconds`."""
    deadline, pause = time.monotonic() + seconds, SHORTEST_PAUSE
    while not (value := holds()):
        in_time = time.monotonic() < deadline
        assert in_time, f"it did not come true within {seconds:g} s: {describe()}"
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return value


def await_start(
    process: subprocess.Popen[bytes],
    is_ready: Callable[[], bool],
    *,
    seconds: float = 300.0,
    describe: Callable[[], object] = lambda: "",
) -> None:
    """Wait until a server is ready; fail at once when its process has ended."""

    def runs_and_is_ready() -> bool:
        assert process.poll() is None, describe()
        return is_ready()

    wait_until(runs_and_is_ready, seconds=seconds, describe=describe)


@contextmanager
def stall_free_timer() -> Iterator[Callable[[], float]]:
    """Give a timer in seconds that stands still while the machine does.

    It does not count how long a thread waits for a processor.
    """
    passed, end = 0.0, threading.Event()

    def tick() -> None:
        nonlocal passed
        last = time.monotonic()
        while not end.wait(TICK):
            now = time.monotonic()
            passed += min(now - last, LONGEST_TICK)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield lambda: passed
    finally:
        end.set()
        thread.join()
