"""Wait for a condition, with a limit that no busy machine reaches."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# A condition that comes true at once is seen at once; one that costs a query or a look
# at all processes is not evaluated too often.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.1


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
