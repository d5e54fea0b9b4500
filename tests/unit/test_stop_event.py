"""A signal stops a process at any step of its main thread."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from apps.core.stop_event import StopEvent

# SIGTERM comes at the line of this number inside the wait, or SIGALRM where the wait
# has fewer lines.
INTERRUPTED = """
import signal, sys
from importlib import import_module

module, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
event = getattr(import_module(module), name)()
for each in (signal.SIGTERM, signal.SIGALRM):
    signal.signal(each, lambda *_: event.set())
signal.setitimer(signal.ITIMER_REAL, 0.2)
lines = 0

def trace(frame, kind, _):
    global lines
    lines += kind == "line"
    if kind == "line" and lines == number:
        signal.raise_signal(signal.SIGTERM)
    return trace

sys.settrace(trace)
event.wait()
# At the interpreter's end a signal has no handler any more, and would kill it.
signal.setitimer(signal.ITIMER_REAL, 0)
"""
MOST_LINES = 8


def wait(module: str, name: str, *, line: int, seconds: float) -> None:
    """Wait in a process for an event that a signal sets when the wait is at this line.

    Raises TimeoutExpired where the wait does not end.
    """
    command = (sys.executable, "-c", INTERRUPTED, module, name, str(line))
    subprocess.run(command, timeout=seconds, check=True)


@pytest.mark.parametrize("line", range(1, MOST_LINES))
def test_a_signal_ends_a_wait_at_each_of_its_steps(line: int) -> None:
    wait("apps.core.stop_event", "StopEvent", line=line, seconds=60)


def test_an_ordinary_event_waits_for_its_own_lock() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        for line in range(1, MOST_LINES):
            wait("threading", "Event", line=line, seconds=5)


def test_it_wakes_all_who_wait() -> None:
    event = StopEvent()
    threads = [threading.Thread(target=event.wait) for _ in range(5)]
    for thread in threads:
        thread.start()

    event.set()

    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert event.is_set()


def test_a_wait_ends_with_its_time() -> None:
    assert not StopEvent().wait(0.01)
