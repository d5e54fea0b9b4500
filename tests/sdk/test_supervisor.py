from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poisonguard.journal.process_death_blame import Blame
from poisonguard.processes import kernel_process_facts
from poisonguard.supervision.supervisor import (
    FAST_DEATHS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    NOT_STARTED,
    pause_after,
)
from tests.sdk.consumer_processes import TIMEOUT, Consumers, ended, popen
from tests.waiting import wait_until


def supervised(consumers: Consumers, *options: str, **plan: object) -> list[str]:
    return run(consumers, *options, command=consumers.command(folder="auto", **plan))


def run(consumers: Consumers, *options: str, command: list[str]) -> list[str]:
    supervisor = [sys.executable, "-m", "poisonguard", "run"]
    return [*supervisor, "--journal", str(consumers.folder), *options, "--", *command]


def to_its_end(command: list[str]) -> tuple[int, str]:
    with popen(command) as process:
        _, output = ended(process)
    return process.returncode, output


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("exit", "The process ended with exit code 0"),
        ("exit 3", "The process ended with exit code 3"),
        ("segv", "The process was killed by SIGSEGV"),
        ("kill", "The process was killed by SIGKILL"),
    ],
)
def test_a_consumer_that_dies_starts_again_and_its_killer_is_poisoned(
    consumers: Consumers, way: str, reason: str
) -> None:
    code, output = to_its_end(supervised(consumers, ways={"2": way}))

    assert code == 0
    assert consumers.noted("started") == [1, 2, 2, 3]
    assert consumers.noted("poisoned") == [2]
    assert output.count(f"{reason} (charged, numbers 2)") == 2


@pytest.mark.parametrize("way", ["hang", "hang in C"])
def test_a_handler_that_hangs_even_in_c_is_killed_with_its_stacks(
    consumers: Consumers, way: str
) -> None:
    command = supervised(consumers, "--handler-timeout", "2.5", ways={"2": way})

    code, output = to_its_end(command)

    assert code == 0
    assert consumers.noted("poisoned") == [2]
    assert output.count("The handler was stuck for 2.5 s") == 2
    assert "in _handle" in output
    assert list(consumers.folder.glob("*.stacks")) == []


def test_of_several_in_flight_only_the_one_that_hangs_is_charged(
    consumers: Consumers,
) -> None:
    command = supervised(
        consumers,
        *("--handler-timeout", "3"),
        messages=400,
        slots=4,
        sleep=0.05,
        ways={"20": "hang"},
    )

    code, output = to_its_end(command)

    assert code == 0
    assert consumers.noted("poisoned") == [20]
    assert output.count("(charged, numbers 20)") == 2
    assert "suspected" not in output


def test_a_process_that_does_not_stop_in_time_is_killed_and_not_charged(
    consumers: Consumers,
) -> None:
    command = supervised(
        consumers, "--grace", "0.2", ways={"2": "hang"}, ignores_sigterm=True
    )

    with popen(command) as process:
        wait_until(lambda: 2 in consumers.noted("started"), seconds=TIMEOUT)
        process.send_signal(signal.SIGTERM)
        _, output = ended(process)

    assert process.returncode == 128 + signal.SIGKILL
    assert "did not stop in time: killed" in output
    journal = consumers.next_start()
    [death] = journal.deaths
    assert (death.numbers, death.blame) == ((2,), Blame.EXCUSED)
    assert death.reason == "The process was told to stop"
    journal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_supervisor_hands_a_signal_on_and_ends_as_its_consumer_does(
    consumers: Consumers, number: signal.Signals
) -> None:
    with popen(supervised(consumers, ways={"2": "hang"})) as process:
        wait_until(lambda: 2 in consumers.noted("started"), seconds=TIMEOUT)
        process.send_signal(number)
        ended(process)

    assert process.returncode == 128 + number
    assert consumers.noted("started") == [1, 2]
    journal = consumers.next_start()
    assert journal.attempts.suspects == set()
    journal.close()


def test_a_supervisor_that_waits_to_start_again_can_be_stopped(
    consumers: Consumers, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    starts.touch()
    # Deaf to the signal: it may just be about to end when that comes.
    dies = ["sh", "-c", f"trap '' TERM; echo once more >> {starts}; exit 1"]

    with popen(run(consumers, command=dies)) as process:
        wait_until(
            lambda: len(starts.read_text().splitlines()) > FAST_DEATHS + 5,
            seconds=TIMEOUT,
        )
        process.send_signal(signal.SIGTERM)
        _, output = ended(process)

    assert process.returncode == 1
    assert output.count("ended with exit code 1") > FAST_DEATHS + 5


def test_a_consumer_that_is_done_is_not_started_again(consumers: Consumers) -> None:
    code, output = to_its_end(supervised(consumers))

    assert code == 0
    assert consumers.noted("handled") == [1, 2, 3]
    assert output.count("ended with exit code 0") == 1


def test_a_command_that_cannot_run_is_reported(consumers: Consumers) -> None:
    code, output = to_its_end(run(consumers, command=["/nowhere/consumer"]))

    assert code == NOT_STARTED
    assert output == (
        "poisonguard: /nowhere/consumer cannot run: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run"], "Name what to run"),
        (["run", "--handler-timeout", "0", "--", "true"], "handler_timeout is 0.0"),
        (["run", "--journal", "/proc/nowhere", "--", "true"], "cannot be made"),
    ],
)
def test_unusable_arguments_are_refused_with_a_remedy(
    arguments: list[str], text: str
) -> None:
    code, complaint = to_its_end([sys.executable, "-m", "poisonguard", *arguments])

    assert code == 2
    assert text in complaint
    assert "Traceback" not in complaint


FORKS_WORKERS = """
import os, sys, time
from poisonguard.journal.in_flight_journal import Journal
journal = Journal()
journal.open(name="orders/billing/billing-1")
if os.fork() == 0:
    journal.words[0] = 7
    time.sleep(60)
    os._exit(1)
os.wait()
journal.close()
"""


def test_a_worker_that_the_consumer_has_forked_is_watched_too(
    consumers: Consumers,
) -> None:
    command = [sys.executable, "-c", FORKS_WORKERS]

    code, output = to_its_end(
        run(consumers, "--handler-timeout", "0.4", command=command)
    )

    assert code == 0
    assert "is stuck for 0.4 s" in output
    journal = consumers.next_start()
    assert [death.numbers for death in journal.deaths] == [(7,)]
    journal.close()


def test_the_supervisor_reaps_children_left_by_its_consumers(
    consumers: Consumers,
) -> None:
    orphan = "import os, time; os.fork() or (time.sleep(0.2), os._exit(0))"

    code, output = to_its_end(run(consumers, command=[sys.executable, "-c", orphan]))

    assert (code, "Traceback" in output) == (0, False)


def test_the_first_deaths_are_fast_and_later_ones_ever_slower_up_to_a_limit() -> None:
    assert all(pause_after(n) <= FIRST_PAUSE for n in range(1, FAST_DEATHS + 1))
    assert 4 * FIRST_PAUSE <= pause_after(FAST_DEATHS + 3) <= 8 * FIRST_PAUSE
    assert LONGEST_PAUSE / 2 <= pause_after(10**9) <= LONGEST_PAUSE


@pytest.mark.parametrize(
    "text",
    [
        "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n",  # cgroup v2
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",  # v1
    ],
)
def test_kills_for_lack_of_memory_are_counted_in_either_cgroup(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "memory.events"
    file.write_text(text)

    assert kernel_process_facts.oom_kills_in(file) == 2


def test_a_process_is_known_by_its_start_too() -> None:
    own = kernel_process_facts.Identity.own()

    assert kernel_process_facts.start_time(os.getpid()) == own.started
    with subprocess.Popen(["true"]) as child:
        wait_until(
            lambda: kernel_process_facts.start_time(child.pid) is None, seconds=TIMEOUT
        )
    assert kernel_process_facts.start_time(child.pid) is None
