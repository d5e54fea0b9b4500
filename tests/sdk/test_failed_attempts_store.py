from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poisonguard.contract import Cause
from poisonguard.errors import Misconfigured
from poisonguard.journal.failed_attempts_record import Record
from poisonguard.journal.failed_attempts_sqlite_schema import DECAY, KEEP, ROW_LIMIT
from poisonguard.journal.failed_attempts_store import Attempts
from poisonguard.journal.process_death_blame import Blame, Death
from tests.sdk.consumer_processes import python

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
ID = b"orders-7"
NUMBER = 2**64 - 7


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "orders.attempts"


@pytest.fixture
def attempts(file: Path) -> Iterator[Attempts]:
    attempts = Attempts(file)
    attempts.open(now=NOW)
    yield attempts
    attempts.close()


class Starts(Protocol):
    def __call__(self, *, now: datetime = NOW) -> Attempts: ...


@pytest.fixture
def starts(file: Path) -> Iterator[Starts]:
    """Open the file as one process after another does."""
    with ExitStack() as opened:

        def start(*, now: datetime = NOW) -> Attempts:
            attempts = Attempts(file)
            attempts.open(now=now)
            return opened.enter_context(closing(attempts))

        yield start


def death(*numbers: int, blame: Blame = Blame.CHARGED, at: datetime = NOW) -> Death:
    return Death(
        incarnation=uuid4(),
        numbers=numbers,
        blame=blame,
        cause=Cause.CRASH,
        reason="The process was killed by SIGSEGV",
        at=at,
    )


def record_of(attempts: Attempts, *, now: datetime = NOW) -> Record:
    record = attempts.of(ID, NUMBER, now=now)
    assert record is not None
    return record


def test_a_message_that_never_failed_has_no_record(attempts: Attempts) -> None:
    assert attempts.of(ID, NUMBER, now=NOW) is None
    assert attempts.suspects == set()


def test_failures_are_counted_across_restarts(
    attempts: Attempts, starts: Starts
) -> None:
    attempts.count_failure(
        ID, NUMBER, now=NOW, due_at=NOW + SECOND, first_enqueued_at=NOW
    )
    attempts.close()

    later = starts()
    record = later.count_failure(
        ID, NUMBER, now=NOW + HOUR, due_at=NOW + 2 * HOUR, first_enqueued_at=NOW + HOUR
    )

    assert (
        record
        == record_of(later)
        == Record(
            failures=2,
            first_failed_at=NOW,
            failed_at=NOW + HOUR,
            due_at=NOW + 2 * HOUR,
            first_enqueued_at=NOW,
        )
    )
    assert record.attempts == 2
    assert later.suspects == {NUMBER}
    later.close()


def test_a_success_deletes_the_record(attempts: Attempts, starts: Starts) -> None:
    attempts.count_failure(ID, NUMBER, now=NOW)
    attempts.blame(death(NUMBER))

    attempts.forget(ID, NUMBER)

    assert attempts.of(ID, NUMBER, now=NOW) is None
    assert attempts.suspects == set()
    assert starts().suspects == set()


def test_a_death_is_counted_once_however_often_it_is_recorded(
    attempts: Attempts,
) -> None:
    one_death = death(NUMBER)

    attempts.blame(one_death)
    attempts.blame(one_death)
    assert record_of(attempts).crashes == 1
    attempts.blame(death(NUMBER))

    record = record_of(attempts)
    assert (record.crashes, record.attempts) == (2, 2)
    assert record.crash is Cause.CRASH
    assert record.reason == "The process was killed by SIGSEGV"


def test_a_death_recorded_again_after_a_success_is_not_counted(
    attempts: Attempts,
) -> None:
    one_death = death(NUMBER)
    attempts.blame(one_death)
    attempts.forget(ID, NUMBER)

    attempts.blame(one_death)

    assert attempts.suspects == set()


def test_suspects_are_charged_with_nothing_but_must_run_alone(
    attempts: Attempts,
) -> None:
    attempts.blame(death(NUMBER, 8, blame=Blame.SUSPECTED))

    record = record_of(attempts)
    assert (record.crashes, record.attempts) == (0, 0)
    assert record.must_run_alone
    assert attempts.suspects == {NUMBER, 8}


def test_a_message_suspected_again_must_still_run_alone(attempts: Attempts) -> None:
    attempts.blame(death(NUMBER, 8, blame=Blame.SUSPECTED))
    attempts.blame(death(NUMBER, 9, blame=Blame.SUSPECTED))

    assert record_of(attempts).must_run_alone


def test_a_message_that_was_charged_runs_alone_until_it_succeeds(
    attempts: Attempts,
) -> None:
    attempts.blame(death(NUMBER, 8, blame=Blame.SUSPECTED))
    attempts.blame(death(NUMBER))

    attempts.count_failure(ID, NUMBER, now=NOW)

    record = record_of(attempts)
    assert (record.crashes, record.failures) == (1, 1)
    assert not record.is_suspected
    assert record.must_run_alone


def test_a_suspect_that_fails_by_an_exception_did_not_kill_its_process(
    attempts: Attempts,
) -> None:
    attempts.blame(death(NUMBER, 8, blame=Blame.SUSPECTED))

    record = attempts.count_failure(ID, NUMBER, now=NOW)

    assert not record.must_run_alone
    assert (record.failures, record.crash) == (1, None)


def test_an_excused_death_makes_no_record(attempts: Attempts) -> None:
    attempts.blame(death(NUMBER, blame=Blame.EXCUSED))

    assert attempts.suspects == set()


def test_a_process_that_sees_its_end_coming_charges_the_message_itself(
    attempts: Attempts,
) -> None:
    attempts.count_crash(NUMBER, now=NOW, reason="The handler called sys.exit(1)")

    record = record_of(attempts)
    assert (record.crashes, record.reason) == (1, "The handler called sys.exit(1)")
    assert attempts.suspects == {NUMBER}


def test_crashes_decay_and_failures_do_not(attempts: Attempts, starts: Starts) -> None:
    attempts.count_failure(ID, NUMBER, now=NOW)
    attempts.blame(death(NUMBER))
    later = NOW + DECAY + SECOND

    assert record_of(attempts, now=NOW + DECAY).crashes == 1
    assert record_of(attempts, now=later).crashes == 0
    attempts.blame(death(NUMBER, at=later))

    assert record_of(attempts, now=later).crashes == 1
    assert record_of(starts(now=later + DECAY + SECOND)).failures == 1


def test_the_first_failure_is_announced_once_across_restarts_and_successes(
    attempts: Attempts, starts: Starts
) -> None:
    assert attempts.mark_first_failure(ID, now=NOW)
    attempts.forget(ID, NUMBER)

    later = starts()

    assert not later.mark_first_failure(ID, now=NOW)
    assert later.mark_first_failure(b"another", now=NOW)


def test_a_settled_redrive_is_recognised(attempts: Attempts, starts: Starts) -> None:
    assert not attempts.is_redrive_settled("m-1", "r-1")
    assert not attempts.is_redrive_settled("m-1", "r-1")

    attempts.mark_redrive_settled("m-1", "r-1", now=NOW)
    attempts.mark_redrive_settled("m-1", "r-1", now=NOW)

    later = starts()
    assert later.is_redrive_settled("m-1", "r-1")
    assert not later.is_redrive_settled("m-1", "r-2")


@pytest.mark.parametrize(
    ("passed", "remaining"),
    [
        (timedelta(0), 10 * SECOND),
        (4 * SECOND, 6 * SECOND),
        (10 * SECOND, timedelta(0)),
        (365 * 24 * HOUR, timedelta(0)),  # the clock was set forward
        (-365 * 24 * HOUR, 10 * SECOND),  # and back
    ],
)
def test_a_retry_waits_no_longer_than_its_delay_when_the_clock_is_set_back(
    attempts: Attempts, passed: timedelta, remaining: timedelta
) -> None:
    record = attempts.count_failure(ID, NUMBER, now=NOW, due_at=NOW + 10 * SECOND)

    assert record.wait(NOW + passed) == remaining


def test_a_start_after_the_clock_was_set_back_keeps_the_wait_and_the_decay(
    attempts: Attempts, starts: Starts
) -> None:
    attempts.count_failure(ID, NUMBER, now=NOW, due_at=NOW + 10 * SECOND)
    attempts.blame(death(NUMBER))
    back = NOW - 1000 * HOUR

    later = starts(now=back)

    assert record_of(later, now=back).wait(back) == 10 * SECOND
    assert record_of(later, now=back + DECAY + SECOND).crashes == 0


def test_old_records_are_pruned(attempts: Attempts, starts: Starts) -> None:
    attempts.count_failure(ID, NUMBER, now=NOW)
    attempts.mark_first_failure(ID, now=NOW)
    attempts.mark_redrive_settled("m-1", "r-1", now=NOW)
    attempts.blame(death(8))

    later = starts(now=NOW + KEEP + SECOND)

    assert later.suspects == set()
    assert later.mark_first_failure(ID, now=NOW + KEEP + SECOND)
    assert not later.is_redrive_settled("m-1", "r-1")


def test_the_number_of_records_is_bounded(
    attempts: Attempts, file: Path, starts: Starts
) -> None:
    attempts.close()
    with sqlite3.connect(file) as db:
        db.execute(
            "INSERT INTO crashes WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT"
            " i + 1 FROM n WHERE i < ?)"
            " SELECT i, 1, 0, ?, ? + i, 'crash', '', '' FROM n",
            (ROW_LIMIT + 5, *2 * (int((NOW - HOUR).timestamp() * 1_000_000),)),
        )
    db.close()

    later = starts()

    assert len(later.suspects) == ROW_LIMIT
    assert min(later.suspects) == 6


def test_suspects_of_one_process_are_read_by_another(
    attempts: Attempts, starts: Starts
) -> None:
    other = starts()
    suspects = attempts.suspects

    other.count_failure(ID, NUMBER, now=NOW)
    attempts.refresh()
    assert suspects == {NUMBER}
    other.forget(ID, NUMBER)
    attempts.refresh()

    assert suspects == set()


def test_without_a_file_records_live_in_memory() -> None:
    attempts = Attempts()
    attempts.open(now=NOW)

    attempts.count_failure(ID, NUMBER, now=NOW)

    assert record_of(attempts).failures == 1
    assert not attempts.is_redrive_settled("m-1", "r-1")
    attempts.close()


def test_many_threads_count_each_failure(attempts: Attempts) -> None:
    def fail() -> None:
        for _ in range(20):
            attempts.count_failure(ID, NUMBER, now=NOW)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert record_of(attempts).failures == 80


FAIL_IN_MANY_PROCESSES = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from poisonguard.journal.failed_attempts_store import Attempts
now = datetime(2026, 11, 20, 12, tzinfo=UTC)
attempts = Attempts(Path(sys.argv[1]))
attempts.count_failure(b"orders-7", 7, now=now)
for _ in range(4):
    if os.fork() == 0:
        for _ in range(10):
            attempts.count_failure(b"orders-7", 7, now=now)
        os._exit(0)
for _ in range(10):
    attempts.count_failure(b"orders-7", 7, now=now)
for _ in range(4):
    assert os.wait()[1] == 0
print(attempts.of(b"orders-7", 7, now=now).failures)
"""


def test_forked_processes_count_each_failure(file: Path) -> None:
    assert python(FAIL_IN_MANY_PROCESSES, file) == "51\n"


A_PARENT_CLOSES_FIRST = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from poisonguard.journal.failed_attempts_store import Attempts
now = datetime(2026, 11, 20, 12, tzinfo=UTC)
attempts = Attempts(Path(sys.argv[1]))
attempts.count_failure(b"orders-7", 7, now=now)
closed, close = os.pipe()
if os.fork() == 0:
    os.close(close)
    attempts.count_failure(b"orders-7", 7, now=now)
    os.read(closed, 1)
    attempts.count_failure(b"orders-7", 7, now=now)
    os._exit(0)
attempts.count_failure(b"orders-7", 7, now=now)
attempts.close()
os.close(close)
assert os.wait()[1] == 0
print(attempts.of(b"orders-7", 7, now=now).failures)
"""


def test_a_child_goes_on_when_its_parent_has_closed_the_file(file: Path) -> None:
    assert python(A_PARENT_CLOSES_FIRST, file) == "4\n"


def spoil_all(file: Path) -> None:
    file.write_bytes(b"not a database" * 1000)


def spoil_the_middle(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:4096] + b"\xff" * 4096 + data[8192:])


@pytest.mark.parametrize("spoil", [spoil_all, spoil_the_middle])
def test_a_corrupt_file_is_renamed_reported_and_replaced(
    file: Path,
    starts: Starts,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
) -> None:
    before = starts()
    before.count_failure(ID, NUMBER, now=NOW)
    before.close()
    spoil(file)

    later = starts()

    assert later.suspects == set()
    assert file.with_name(f"{file.name}.corrupt").exists()
    [problem] = later.problems
    assert "was corrupt" in problem
    assert caplog.messages == [problem]
    assert later.count_failure(ID, NUMBER, now=NOW).failures == 1


def test_a_file_that_turns_corrupt_is_replaced_by_one_of_its_users(
    attempts: Attempts, file: Path, starts: Starts
) -> None:
    neighbour = starts()
    attempts.count_failure(ID, NUMBER, now=NOW)
    attempts.close()
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    spoil_all(file)

    attempts.count_failure(b"orders-8", 8, now=NOW)
    neighbour.refresh()

    assert len(attempts.problems) == 1
    assert neighbour.problems == []
    assert attempts.suspects == neighbour.suspects == {8}


def test_a_directory_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be written"):
        Attempts(tmp_path).open(now=NOW)


FILL_THE_DISK = """
import resource, sys
from datetime import UTC, datetime
from pathlib import Path
from poisonguard.journal.failed_attempts_store import Attempts
from poisonguard.errors import Full
now = datetime(2026, 11, 20, 12, tzinfo=UTC)
attempts = Attempts(Path(sys.argv[1]))
attempts.open(now=now)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    for n in range(1, 10_000):
        attempts.count_failure(str(n).encode() * 100, n, now=now)
except Full as problem:
    print(problem, len(attempts.suspects) == n - 1)
"""


def test_a_full_disk_raises_full_and_keeps_the_records(
    file: Path, starts: Starts
) -> None:
    said = python(FILL_THE_DISK, file)

    assert "make room on its disk" in said
    assert said.endswith("True\n")
    assert len(starts().suspects) > 0


numbers = st.integers(1, 2**64 - 1)


@given(numbers)
def test_every_number_of_64_bits_comes_back(number: int) -> None:
    attempts = Attempts()

    attempts.count_crash(number, now=NOW, reason="")
    attempts.blame(death(number))

    assert attempts.suspects == {number}
    record = attempts.of(ID, number, now=NOW)
    assert record is not None
    assert record.crashes == 2
    attempts.close()
