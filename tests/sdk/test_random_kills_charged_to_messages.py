from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.sdk import consumer_start_killed_at_each_step
from tests.sdk.consumer_processes import Consumers, program

KILLS = 30
KILLERS = {"20": "segv", "100": "exit", "200": "abort"}
FOREVER = 10**6
FEWEST_STEPS = 60


def kill_one_at_random(consumers: Consumers, slots: int) -> set[int]:
    """Kill a consumer from outside; return what it was at work on.

    Wait until it has handled what the last kill had hit: two outside kills of one
    message look like a message that kills.
    """
    started, ended, handled = map(consumers.noted, ("started", "ended", "handled"))
    process = consumers.fork(messages=FOREVER, slots=slots, ways=KILLERS)
    while process.is_alive() and consumers.count("handled") <= len(handled) + slots:
        time.sleep(0.005)
    time.sleep(random.uniform(0.0, 0.03))
    process.kill()
    process.join()
    begun = set(consumers.noted("started")[len(started) :])
    return begun - set(consumers.noted("ended")[len(ended) :])


@pytest.mark.parametrize("slots", [1, 8])
def test_random_kills_are_all_charged_to_the_right_messages(
    tmp_path: Path, slots: int
) -> None:
    consumers = Consumers.under(tmp_path)
    hits = 0
    touched = {*map(int, KILLERS)}

    for _ in range(KILLS):
        in_flight = kill_one_at_random(consumers, slots)
        hits += bool(in_flight)
        journal = consumers.next_start()
        blamed = {number for death in journal.deaths for number in death.numbers}
        assert blamed >= in_flight
        # The journal knows of a message before its handler can note that it started.
        touched |= blamed
        journal.close()
    last = max(touched.union(consumers.noted("started")))
    exit_code = None
    for _ in range(4 * len(KILLERS)):
        exit_code = consumers.run_fork(messages=last, slots=slots, ways=KILLERS)

    assert exit_code == 0
    assert hits > KILLS / 10
    assert sorted(consumers.noted("poisoned")) == sorted(map(int, KILLERS))
    settled = consumers.noted("handled") + consumers.noted("poisoned")
    assert sorted(set(settled)) == list(range(1, last + 1))
    journal = consumers.next_start()
    assert journal.attempts.suspects <= set(map(int, KILLERS))
    journal.close()


def test_a_kill_between_any_two_steps_charges_each_death_once(
    tmp_path: Path,
) -> None:
    said = program(consumer_start_killed_at_each_step.__file__, tmp_path)

    lines = said.splitlines()
    assert len(lines) > FEWEST_STEPS
    # One charge, and no journal is left but that of who tells.
    assert lines == ["1 1"] * len(lines)
