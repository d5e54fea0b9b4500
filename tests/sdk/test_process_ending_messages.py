"""Messages that end the process of their consumer, each in a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.sdk.fake_poisonweb_server import FakeServer

CONSUMER = Path(__file__).with_name("crashing_guarded_consumer.py")
FORKING = Path(__file__).with_name("forking_consumer.py")
LATE = Path(__file__).with_name("late_sigterm_handler_consumer.py")
CRASH_LIMIT = 2
SOAK = "SOAK" in os.environ
CHILDREN = (1, 4, 16) if SOAK else (1, 4)
KILLERS, NEIGHBOURS = (20, 400) if SOAK else (1, 4)
DEPLOYS = 50 if SOAK else CRASH_LIMIT + 1
ROOT = Path(__file__).parents[2]
SDK = ROOT / "sdk"


class RestartedConsumer:
    """A consumer that is started again and again, and its broker."""

    def __init__(
        self, server: FakeServer, folder: Path, how: str, threads: int = 1
    ) -> None:
        self.folder = folder
        self._start = [str(CONSUMER), server.url, str(folder), how, str(threads)]

    def start(self, *bookmarks: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *self._start, *bookmarks],
            env={**os.environ, "PYTHONPATH": str(SDK)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, *bookmarks: str) -> int:
        return self.start(*bookmarks).wait(timeout=60)

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().split() if file.exists() else []


@pytest.mark.parametrize(
    ("how", "status", "cause", "reason"),
    [
        ("exit", 0, "crash", ""),
        ("kill", -signal.SIGKILL, "crash", ""),
        ("abort", -signal.SIGABRT, "crash", ""),
        ("sys.exit", 3, "crash", "The handler called sys.exit(3)"),
        ("hang", -signal.SIGKILL, "hang", "stuck for 2.5"),
    ],
)
def test_a_killer_is_poisoned_after_two_deaths_of_its_own(
    server: FakeServer, tmp_path: Path, how: str, status: int, cause: str, reason: str
) -> None:
    consumer = RestartedConsumer(server, tmp_path, how)

    ends = [consumer.run("b-1", "killer", "b-2") for _ in range(3)]

    (report,) = server.reports.failures.values()
    assert ends == [status, status, 0]
    assert consumer.lines("handled") == ["b-1", "killer", "killer", "b-2"]
    assert consumer.lines("settled") == ["b-1", "killer", "b-2"]
    assert (report["bookmark"], report["cause"]) == ("killer", cause)
    assert (report["crashes"], report["attempts"]) == (2, 2)
    assert reason in report["exception"]["message"]
    # Suspected at first: this process had handled nothing yet.
    assert report["suspected"]
    assert list(server.reports.arrivals.values()) == [2]


def test_sys_exit_in_a_thread_ends_the_process_and_is_one_death(
    server: FakeServer, tmp_path: Path
) -> None:
    consumer = RestartedConsumer(server, tmp_path, "sys.exit", threads=2)

    ends = [consumer.run("killer") for _ in range(3)]

    (report,) = server.reports.failures.values()
    assert ends == [3, 3, 0]
    assert consumer.lines("handled") == ["killer", "killer"]
    assert report["crashes"] == 2
    assert "sys.exit(3)" in report["exception"]["message"]


def test_of_many_in_flight_the_killer_alone_is_poisoned_after_three_deaths(
    server: FakeServer, tmp_path: Path
) -> None:
    consumer = RestartedConsumer(server, tmp_path, "together", threads=4)
    bookmarks = ["b-1", "b-2", "killer", "b-3", "b-4", "b-5"]

    ends = [consumer.run(*bookmarks) for _ in range(4)]

    times = Counter(consumer.lines("handled"))
    assert ends == [-signal.SIGKILL] * 3 + [0]
    assert [report["bookmark"] for report in server.reports.failures.values()] == [
        "killer"
    ]
    assert sorted(consumer.lines("settled")) == sorted(bookmarks)
    assert times["killer"] == 3


@pytest.mark.parametrize("how", ["wait", "stubborn"])
def test_a_process_told_to_stop_charges_no_message(
    server: FakeServer, tmp_path: Path, how: str
) -> None:
    consumer = RestartedConsumer(server, tmp_path, how)

    for n in range(1, 4):
        process = consumer.start("killer")
        server.until(lambda: len(consumer.lines("handled")) == n)  # noqa: B023
        process.send_signal(signal.SIGTERM)
        if how == "stubborn":
            server.until(lambda: len(consumer.lines("told")) == n)  # noqa: B023
            process.kill()
        process.wait(timeout=60)

    assert consumer.lines("handled") == ["killer"] * 3
    assert server.reports.failures == {}


@pytest.mark.parametrize("children", CHILDREN)
def test_reforked_children_die_at_most_crash_limit_times(
    server: FakeServer, tmp_path: Path, children: int
) -> None:
    killers = [f"killer-{n}" for n in range(KILLERS)]
    bookmarks = [*killers, *(f"b-{n}" for n in range(NEIGHBOURS))]
    Random(children).shuffle(bookmarks)

    # The skip of it never comes: it may be on its way for as long as they run. Without
    # it they know of it for a minute.
    server.replays = SOAK
    subprocess.run(
        [sys.executable, FORKING, server.url, tmp_path, str(children), *bookmarks],
        env={**os.environ, "PYTHONPATH": str(SDK)},
        timeout=120 * KILLERS,
        check=True,
    )

    started = Path(tmp_path, "started").read_text().split()
    settled = Path(tmp_path, "settled").read_text().split()
    # The process that dies of the last death runs no more.
    deaths = Counter(each for each in started if each in killers)
    assert max(deaths.values()) <= CRASH_LIMIT + children - 1
    assert {report["bookmark"] for report in server.reports.failures.values()} == {
        *killers
    }
    assert set(settled) == set(bookmarks)


@pytest.mark.parametrize(
    "how",
    [
        "before the first message",
        "after the first message",
        "beside the thread that handles",
        "in a loop",
        "started off the main thread",
    ],
)
def test_a_sigterm_handler_set_after_the_start_charges_no_message(
    server: FakeServer, tmp_path: Path, how: str
) -> None:
    def notes(name: str) -> int:
        file = tmp_path / name
        return len(file.read_text().split()) if file.exists() else 0

    for n in range(1, DEPLOYS + 1):
        with subprocess.Popen(
            [sys.executable, LATE, server.url, tmp_path, how],
            env={**os.environ, "PYTHONPATH": f"{SDK}:{ROOT}"},
        ) as process:
            try:
                server.until(lambda: notes("started") == n)  # noqa: B023
                process.send_signal(signal.SIGTERM)
                server.until(lambda: notes("told") == n)  # noqa: B023
            finally:
                process.kill()

    assert notes("started") == DEPLOYS
    assert server.reports.failures == {}
