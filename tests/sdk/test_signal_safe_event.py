"""How a process that is told to stop, or ended by a handler, gets to its end."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from poisonguard.processes.signal_safe_event import SignalSafeEvent
from tests.sdk.fake_poisonweb_server import KEY, FakeServer

# Strikes at every single step of a wait, also where an ordinary event holds its lock.
STRUCK = """
import signal, sys
from poisonguard import Guard, RetryPolicy

struck = []

def strike(frame, event, _):
    if (frame.f_back.f_code.co_name, frame.f_code.co_name) != ("play", "wait"):
        return None
    frame.f_trace_opcodes = True
    if event == "opcode":
        signal.raise_signal(signal.SIGTERM)
    return strike

def terminated(*_):
    struck.append(True)

def fail(_message):
    raise OSError("away")

signal.signal(signal.SIGTERM, terminated)
url, key = sys.argv[1:]
options = {"topic": "orders", "consumer_group": "billing", "url": url, "api_key": key}
with Guard(**options, journal=None, policy=RetryPolicy(base=60, cap=60)) as guard:
    sys.settrace(strike)
    outcome = guard.handle({"bookmark": "b-1"}, fail)
    sys.settrace(None)
print(outcome, len(struck) > 10)
"""

IN_A_THREAD = """
import sys, threading
from poisonguard.processes.signal_safe_event import end_process

print("said before")
thread = threading.Thread(target=end_process, args=({code!r},))
{first}
thread.start()
thread.join()
threading.Event().wait(30)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_signal_at_any_step_of_a_wait_ends_it(server: FakeServer) -> None:
    ended = python(STRUCK, server.url, KEY)

    assert (ended.stdout, ended.stderr) == ("release True\n", "")


def test_setting_the_event_releases_all_waiters() -> None:
    leaving, woken = SignalSafeEvent(), []
    threads = [
        threading.Thread(target=lambda: woken.append(leaving.wait(60))) for _ in "abc"
    ]
    for thread in threads:
        thread.start()

    leaving.set()
    leaving.set()
    for thread in threads:
        thread.join(timeout=60)

    assert woken == [True] * 3
    assert (leaving.is_set(), leaving.wait()) == (True, True)


def test_a_wait_ends_at_its_time_out() -> None:
    leaving = SignalSafeEvent()

    outcomes = [leaving.wait(seconds) for seconds in (0.05, 0, -1)]

    assert outcomes == [False] * 3
    assert not leaving.is_set()


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        (None, 0, ""),
        (3, 3, ""),
        (-1, 255, ""),
        (2**40 + 5, 5, ""),
        ("no more", 1, "no more\n"),
    ],
)
def test_a_thread_ends_its_process_as_the_main_thread_would(
    code: object, status: int, text: str
) -> None:
    ended = python(IN_A_THREAD.format(code=code, first=""))

    assert (ended.returncode, ended.stderr) == (status, text)
    assert ended.stdout == "said before\n"


def test_a_process_ends_though_its_stderr_is_closed() -> None:
    first = "sys.stdout.close()"

    ended = python(IN_A_THREAD.format(code=3, first=first))

    assert ended.returncode == 3
