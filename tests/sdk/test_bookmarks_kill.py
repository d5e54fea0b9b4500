"""A consumer that is killed resumes at its hole and its last write, nowhere else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from poisonguard.bookmarks import BookmarkStore
from tests.sdk.fake_poisonweb_server import KEY, FakeServer, running
from tests.sdk.killed_consumer_logs import Lives
from tests.sdk.random_bookmark_settling_consumer import PLACE

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 1_000_000 if os.environ.get("SOAK") else 100_000
IN_FLIGHT, HOLE = 4_000, 10
KILLS = 2


def test_after_each_kill_only_the_hole_and_what_was_not_written_come_again(
    tmp_path: Path,
) -> None:
    lives = Lives(tmp_path)
    with running() as server:
        for kill in range(1, KILLS + 1):
            life = _start(server, lives.begin())
            while lives.count() < MESSAGES * kill / (KILLS + 2):
                assert life.poll() is None, "it has ended by itself"
                time.sleep(random.random() / 50)
            life.kill()
            life.wait()
            _check(server, lives)

        assert _start(server, lives.begin()).wait() == 0

        again, runs = _reopen(server)
        assert ([*again], runs) == ([HOLE], 2)


def _start(server: FakeServer, log: Path) -> subprocess.Popen[bytes]:
    arguments = [server.url, log, MESSAGES, IN_FLIGHT, HOLE]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.sdk.random_bookmark_settling_consumer",
            *map(str, arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
    )


def _check(server: FakeServer, lives: Lives) -> None:
    again, runs = _reopen(server)
    settled = lives.settled()
    passed = set(range(1, max(settled))) - again

    assert HOLE in again
    assert passed <= settled, "nothing is passed over that was not settled"
    assert not again & lives.flushed(), "nothing comes again that was written"
    assert runs <= IN_FLIGHT


def _reopen(server: FakeServer) -> tuple[set[int], int]:
    """Take the position over as the next consumer; return what it gets."""
    with BookmarkStore(server.url, KEY, client_name="billing-1") as store:
        resume = store.open(PLACE[0]).positions.get("p") or 0
        numbers = range(resume + 1, MESSAGES + 1)
        again = {number for number in numbers if not store.is_settled(*PLACE, number)}
        return again, store.health().runs
