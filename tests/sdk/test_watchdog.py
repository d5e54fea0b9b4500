from __future__ import annotations

import signal

import pytest

from poisonguard.contract import Cause
from poisonguard.errors import Misconfigured
from poisonguard.journal.process_death_blame import Blame
from poisonguard.supervision.watchdog import HangDetector, interval
from tests.sdk.consumer_processes import NAME, Consumers, ended, python

LIMIT = 10.0


def looks(*works: tuple[int, int], every: float = 1.0) -> list[list[str]]:
    """Check one slot again and again; return the result of each check."""
    patience: HangDetector[str] = HangDetector(LIMIT)
    return [
        patience.stuck([("slot", work)], now=100 + every * turn)
        for turn, work in enumerate(works)
    ]


def test_a_slot_is_stuck_once_it_held_one_number_for_the_whole_time() -> None:
    stuck_at = looks(*[(7, 1)] * 12)

    assert stuck_at == [[]] * 10 + [["slot"]] * 2


@pytest.mark.parametrize(
    "work",
    [
        (0, 1),  # idle
        (8, 1),  # the next message
        (7, 2),  # the same one, started again
    ],
)
def test_a_slot_that_makes_progress_is_not_stuck(work: tuple[int, int]) -> None:
    stuck_at = looks(*[(7, 1)] * 9, work, *[(7, 1)] * 9)

    assert stuck_at == [[]] * 19


def test_an_idle_slot_is_never_stuck() -> None:
    assert looks(*[(0, 0)] * 30) == [[]] * 30


def test_time_without_checks_does_not_count() -> None:
    assert looks(*[(7, 1)] * 4, every=1000.0) == [[]] * 4


def test_each_slot_has_its_own_time() -> None:
    patience: HangDetector[int] = HangDetector(LIMIT)
    for turn in range(10):
        patience.stuck([(0, (7, 0)), (1, (100 + turn, 0))], now=turn)

    assert patience.stuck([(0, (7, 0)), (1, (109, 0))], now=10) == [0]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_an_invalid_time_out_is_refused(seconds: float) -> None:
    with pytest.raises(Misconfigured, match="handler_timeout"):
        interval(seconds)


def test_a_handler_that_hangs_ends_its_process_with_its_stacks(
    consumers: Consumers,
) -> None:
    with consumers.start(ways={"2": "hang"}, handler_timeout=2.5) as process:
        _, output = ended(process)

    assert process.returncode == -signal.SIGKILL
    assert "is stuck for 2.5 s: killing this process" in output
    assert "journal_only_consumer.py" in output
    journal = consumers.next_start()
    [death] = journal.deaths
    assert (death.numbers, death.blame) == ((2,), Blame.CHARGED)
    assert death.cause is Cause.HANG
    assert death.reason.startswith("The handler was stuck for 2.5 s")
    assert "in _handle" in death.stacks
    assert list(consumers.folder.glob("*.stacks")) == []
    record = journal.attempts.of(b"2", 2, now=death.at)
    assert record is not None
    assert (record.crash, record.stacks) == (Cause.HANG, death.stacks)
    journal.close()


def test_of_several_in_flight_only_the_one_that_hangs_is_charged(
    consumers: Consumers,
) -> None:
    consumers.run(
        messages=400, slots=4, ways={"2": "hang"}, handler_timeout=3.0, sleep=0.05
    )

    journal = consumers.next_start()

    assert [(d.numbers, d.blame) for d in journal.deaths] == [((2,), Blame.CHARGED)]
    journal.close()


def test_a_handler_that_is_slow_but_in_time_is_left_alone(
    consumers: Consumers,
) -> None:
    code = consumers.run(messages=4, handler_timeout=20.0, sleep=0.4)

    assert code == 0
    assert consumers.noted("handled") == [1, 2, 3, 4]


HANGS_IN_A_CHILD = """
import os, signal, sys, time
from poisonguard.journal.in_flight_journal import Journal
from poisonguard.supervision.watchdog import Watchdog
journal = Journal(sys.argv[1])
journal.open(name=sys.argv[2])
watchdog = Watchdog(journal, handler_timeout=0.3)
watchdog.start()
if os.fork() == 0:
    journal.words[0] = 7
    time.sleep(60)
print(os.wait()[1] == signal.SIGKILL)
watchdog.stop()
journal.close()
"""


def test_a_forked_child_is_watched_as_its_parent_is(consumers: Consumers) -> None:
    assert python(HANGS_IN_A_CHILD, consumers.folder, NAME) == "True\n"

    journal = consumers.next_start()

    assert [(d.numbers, d.cause) for d in journal.deaths] == [((7,), Cause.HANG)]
    journal.close()
