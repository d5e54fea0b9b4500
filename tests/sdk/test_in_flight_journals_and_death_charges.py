from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from poisonguard.errors import Misconfigured
from poisonguard.journal import journal_binary_format
from poisonguard.journal.failed_attempts_store import Attempts
from poisonguard.journal.in_flight_journal import Journal
from poisonguard.journal.journal_binary_format import WORD, EndingKind, Header
from poisonguard.journal.orphaned_journals import OrphanRecovery
from poisonguard.journal.process_death_blame import Blame
from poisonguard.processes.kernel_process_facts import Identity
from poisonguard.supervision.supervisor import Journals
from tests.sdk.consumer_processes import NAME, Consumers, python

NOW = datetime(2026, 11, 20, tzinfo=UTC)
LARGEST = 2**64 - 1


@pytest.fixture
def journal(consumers: Consumers) -> Iterator[Journal]:
    journal = consumers.next_start(slots=2)
    yield journal
    journal.close()


def left_behind(
    folder: Path, *words: int, owner: Identity | None = None, name: str = NAME
) -> Path:
    """Create the journal of a dead process, whose pid is now ours."""
    folder.mkdir(mode=0o700, exist_ok=True)
    own = Identity.own()
    header = Header(
        slots=len(words),
        owner=owner or Identity(pid=own.pid, started=own.started - 1, boot=own.boot),
        incarnation=uuid4(),
        name=journal_binary_format.name_digest(name),
        oom_kills=0,
    )
    path = folder / journal_binary_format.file_name(header.name, header.incarnation)
    slots = b"".join(word.to_bytes(WORD, sys.byteorder) for word in words)
    path.write_bytes(header.packed() + slots.ljust(3 * len(slots), b"\0"))
    return path


@pytest.mark.parametrize(
    "way",
    ["exit", "exit 3", "segv", "segv in a thread", "abort", "kill", "term", "exec"],
)
def test_whatever_ends_the_process_is_charged_to_the_message_in_flight(
    consumers: Consumers, way: str
) -> None:
    consumers.run(ways={"2": way})

    journal = consumers.next_start()

    [death] = journal.deaths
    assert (death.numbers, death.blame) == ((2,), Blame.CHARGED)
    assert journal.attempts.suspects == {2}
    assert consumers.noted("handled") == [1]
    journal.close()


def test_a_process_that_becomes_itself_again_is_charged_like_any_other(
    consumers: Consumers,
) -> None:
    code = consumers.run(ways={"2": "exec itself"})

    assert code == 0
    assert consumers.noted("started") == [1, 2, 2, 3]
    assert consumers.noted("poisoned") == [2]


def test_a_process_told_to_stop_and_then_killed_charges_no_message(
    consumers: Consumers,
) -> None:
    consumers.run(ways={"2": "told to stop"})

    journal = consumers.next_start()

    assert [death.blame for death in journal.deaths] == [Blame.EXCUSED]
    assert journal.attempts.suspects == set()
    journal.close()


def test_a_host_that_went_down_charges_no_message(consumers: Consumers) -> None:
    owner = Identity(pid=4711, started=1, boot=UUID(int=1))
    path = left_behind(consumers.folder, 7, owner=owner)

    journal = consumers.next_start()

    [death] = journal.deaths
    assert (death.blame, death.reason) == (Blame.EXCUSED, "The host went down")
    assert journal.attempts.suspects == set()
    assert not path.exists()
    journal.close()


def test_several_in_flight_are_suspected_and_none_is_charged(
    consumers: Consumers,
) -> None:
    left_behind(consumers.folder, 7, 0, LARGEST, 7)

    journal = consumers.next_start()

    [death] = journal.deaths
    assert (death.numbers, death.blame) == ((7, LARGEST), Blame.SUSPECTED)
    assert journal.attempts.suspects == {7, LARGEST}
    journal.close()


def test_a_process_that_died_idle_charges_no_message_and_leaves_no_file(
    consumers: Consumers,
) -> None:
    path = left_behind(consumers.folder, 0, 0)

    journal = consumers.next_start()

    assert journal.deaths == []
    assert not path.exists()
    journal.close()


START = """
import sys
from poisonguard.journal.in_flight_journal import Journal
journal = Journal(sys.argv[1])
journal.open(name=sys.argv[2])
print(journal.deaths, journal.problems)
"""


def test_a_process_that_runs_is_left_alone(
    consumers: Consumers, journal: Journal
) -> None:
    journal.words[0] = 7

    output = python(START, consumers.folder, NAME)

    assert output == "[] []\n"
    assert journal.path is not None
    assert journal.path.exists()
    journal.words[0] = 0


SETTLES = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_an_orphan_that_another_process_is_settling_is_left_to_it(
    consumers: Consumers,
) -> None:
    path = left_behind(consumers.folder, 7)
    command = [sys.executable, "-c", SETTLES, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()

        meanwhile = consumers.next_start()
        process.communicate()

    assert (meanwhile.deaths, meanwhile.problems) == ([], [])
    meanwhile.close()
    later = consumers.next_start()
    assert [death.numbers for death in later.deaths] == [(7,)]
    later.close()


SLOWLY = """
import sys
from poisonguard.journal.failed_attempts_store import Attempts
from poisonguard.journal.in_flight_journal import Journal
blame = Attempts.blame
def slowly(attempts, death):
    print("settling", flush=True)
    sys.stdin.read()
    blame(attempts, death)
Attempts.blame = slowly
Journal(sys.argv[1]).open(name=sys.argv[2])
"""


def test_a_start_waits_for_the_death_that_another_process_is_settling(
    consumers: Consumers,
) -> None:
    left_behind(consumers.folder, 7)
    command = [sys.executable, "-c", SLOWLY, str(consumers.folder), NAME]
    started = list[Journal]()
    start = threading.Thread(target=lambda: started.append(consumers.next_start()))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()

        start.start()
        start.join(timeout=0.2)
        process.communicate()
    start.join(timeout=300)

    (journal,) = started
    assert (journal.deaths, journal.attempts.suspects) == ([], {7})
    journal.close()


def test_a_start_knows_what_was_settled_since_it_first_looked(
    consumers: Consumers,
) -> None:
    consumers.next_start().close()  # makes the folder
    attempts, others = (Attempts(consumers.folder / "attempts") for _ in "ab")
    attempts.open(now=NOW)
    left_behind(consumers.folder, 7)
    name = journal_binary_format.name_digest(NAME)
    adoption = partial(OrphanRecovery, folder=consumers.folder, name=name, now=NOW)
    adoption(attempts=others).run(own=())

    adoption(attempts=attempts).run(own=())

    assert attempts.suspects == {7}
    attempts.close()
    others.close()


def test_a_second_journal_of_the_same_process_leaves_the_first_one_locked(
    consumers: Consumers, journal: Journal
) -> None:
    journal.words[0] = 7

    second = consumers.next_start()

    assert (second.deaths, second.problems) == ([], [])
    second.close()
    assert python(START, consumers.folder, NAME) == "[] []\n"
    journal.words[0] = 0


def test_a_journal_has_all_its_room_from_the_start(consumers: Consumers) -> None:
    journal = consumers.next_start(slots=60_000)

    assert journal.path is not None
    status = journal.path.stat()
    assert status.st_blocks * 512 >= status.st_size
    journal.close()


def test_a_process_that_lost_its_lock_is_not_taken_for_dead(
    consumers: Consumers, journal: Journal
) -> None:
    journal.words[0] = 7
    assert journal.path is not None
    journal.path.open("rb").close()  # which is what must not be done

    output = python(START, consumers.folder, NAME)

    assert output.startswith("[] [")
    assert "has lost its lock while process" in output
    assert journal.path.exists()
    journal.words[0] = 0


def test_consumers_of_other_names_do_not_settle_each_others_orphans(
    consumers: Consumers,
) -> None:
    path = left_behind(consumers.folder, 7, name="orders/billing/billing-2")

    journal = consumers.next_start()

    assert journal.deaths == []
    assert path.exists()
    journal.close()


def test_of_several_starts_at_once_one_settles_the_orphan(
    consumers: Consumers,
) -> None:
    for _ in range(5):
        left_behind(consumers.folder, 1)

    together = [consumers.start(messages=0) for _ in range(6)]
    for process in together:
        process.communicate()

    assert consumers.noted("blamed") == [1] * 5
    journal = consumers.next_start()
    record = journal.attempts.of(b"1", 1, now=NOW)
    assert record is not None
    assert record.crashes == 5
    journal.close()


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def cut_to_the_name(path: Path) -> None:
    os.truncate(path, 6)


def not_a_journal(path: Path) -> None:
    path.write_bytes(b"something else, and rather longer than a header" * 9)


def of_a_newer_version(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(len(journal_binary_format.MAGIC))
        file.write((journal_binary_format.VERSION + 1).to_bytes(4, sys.byteorder))


def ended_in_a_way_that_is_none(path: Path) -> None:
    overwrite_ending(path, (255).to_bytes(4, sys.byteorder))


def ended_after_the_last_year(path: Path) -> None:
    overwrite_ending(path, b"\0" * WORD + b"\xff" * WORD)


def overwrite_ending(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(journal_binary_format.ENDING_AT)
        file.write(data)


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "text", "stays"),
    [
        (cut_short, "was cut short", False),
        (cut_to_the_name, "was cut short", False),
        (not_a_journal, "is not a journal and was left alone: remove it", True),
        (ended_in_a_way_that_is_none, "is not a journal and was left alone", True),
        (ended_after_the_last_year, "is not a journal and was left alone", True),
        (of_a_newer_version, "newer poisonguard and left alone: upgrade", True),
        (a_directory, "is not a file: remove it", True),
        (a_link, "is not a file: remove it", True),
        (a_pipe, "is not a file: remove it", True),
    ],
)
def test_an_unreadable_journal_charges_no_message_and_is_reported(
    consumers: Consumers,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
    text: str,
    stays: bool,
) -> None:
    path = left_behind(consumers.folder, 7)
    spoil(path)

    journal = consumers.next_start()

    [problem] = journal.problems
    assert text in problem
    assert str(path) in problem
    assert caplog.messages == [problem]
    assert journal.facts()["problems"] == [problem]
    assert journal.deaths == []
    assert path.exists() is stays
    journal.close()


@pytest.mark.parametrize(
    "spoil", [ended_in_a_way_that_is_none, ended_after_the_last_year, cut_short]
)
def test_a_damaged_journal_does_not_keep_the_supervisor_from_others(
    consumers: Consumers, spoil: Callable[[Path], None]
) -> None:
    owner = Identity(pid=4711, started=1, boot=UUID(int=1))
    damaged, sound = (left_behind(consumers.folder, 7, owner=owner) for _ in range(2))
    spoil(damaged)

    mid_message = Journals(consumers.folder).record_end(owner, 3)

    assert mid_message
    with sound.open("rb") as file:
        ending = journal_binary_format.read(file.fileno()).ending
    assert (ending.kind, ending.value) == (EndingKind.EXIT, 3)


def test_the_empty_journal_of_a_killed_start_is_removed_silently(
    consumers: Consumers,
) -> None:
    path = left_behind(consumers.folder, 7)
    path.write_bytes(b"\0" * 100)

    journal = consumers.next_start()

    assert journal.problems == []
    assert not path.exists()
    journal.close()


def a_file(folder: Path) -> Path:
    folder.write_text("")
    return folder


def a_linked_folder(folder: Path) -> Path:
    folder.with_name("target").mkdir(mode=0o700)
    folder.symlink_to(folder.with_name("target"))
    return folder


def open_to_others(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o770)
    return folder


def somebody_elses(folder: Path) -> Path:
    if os.geteuid():
        return Path("/")
    folder.mkdir()
    os.chown(folder, 4711, -1)
    return folder


def unmakeable(_: Path) -> Path:
    return Path("/proc/poisonguard")


@pytest.mark.parametrize(
    ("spoilt", "text"),
    [
        (a_file, "cannot be made"),
        (a_linked_folder, "is a symbolic link: name the folder itself"),
        (open_to_others, "Others may write into"),
        (somebody_elses, "belongs to another user"),
        (unmakeable, "cannot be made"),
    ],
)
def test_with_an_untrusted_folder_the_consumer_runs_without_a_journal(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoilt: Callable[[Path], Path],
    text: str,
) -> None:
    journal = Journal(spoilt(tmp_path / "journal"))

    journal.open(name=NAME)

    [problem] = journal.problems
    assert problem.startswith("Crashes are not attributed to messages: ")
    assert text in problem
    assert caplog.messages == [problem]
    assert journal.facts()["journal"] is False
    journal.words[0] = 7
    journal.close()


NO_ROOM = """
import resource, sys
from poisonguard.errors import Full
from poisonguard.journal.in_flight_journal import Journal
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    Journal(sys.argv[1]).open(name=sys.argv[2], slots=60_000)
except Full as problem:
    print(problem)
"""


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (0, "cannot grow"),
        (1_000_000, "has no room for a journal of 1440128 bytes: make room there"),
    ],
)
def test_a_full_disk_raises_full_at_the_start(
    consumers: Consumers, room: int, text: str
) -> None:
    said = python(NO_ROOM, consumers.folder, NAME, room)

    assert text in said
    assert list(consumers.folder.glob("*.journal")) == []


def test_without_a_folder_there_is_no_file_and_no_charge() -> None:
    journal = Journal(None)

    journal.open(name=NAME, slots=3)

    journal.words[2] = LARGEST
    assert journal.facts()["journal"] is False
    assert journal.problems == []
    journal.close()


def test_auto_is_the_folder_of_the_supervisor(
    consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISONGUARD_JOURNAL", str(consumers.folder))
    journal = Journal("auto")

    journal.open(name=NAME)

    assert journal.folder == consumers.folder
    journal.close()


def test_auto_is_a_folder_that_only_we_can_enter() -> None:
    said = python(
        "from poisonguard.journal.in_flight_journal import Journal;"
        "j = Journal(); j.open(name='a test'); print(j.folder); j.close()"
    )

    folder = Path(said.strip())
    assert folder.stat().st_uid == os.geteuid()
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.glob(
        f"{journal_binary_format.stem(journal_binary_format.name_digest('a test'))}*"
    ):
        file.unlink()


def test_a_clean_end_leaves_no_journal(consumers: Consumers, journal: Journal) -> None:
    journal.words[0] = 7
    journal.words[0] = 0

    journal.close()

    assert list(consumers.folder.glob("*.journal")) == []


def test_an_end_amid_a_message_is_settled_by_the_next_start(
    consumers: Consumers, journal: Journal
) -> None:
    journal.words[1] = 7
    journal.close()

    later = consumers.next_start()

    assert [death.numbers for death in later.deaths] == [(7,)]
    later.close()


def test_a_requested_end_amid_a_message_leaves_no_journal(
    consumers: Consumers, journal: Journal
) -> None:
    journal.words[1] = 7
    journal.stopping()

    journal.close()

    assert list(consumers.folder.glob("*.journal")) == []


def test_more_in_flight_than_a_journal_can_hold_is_refused() -> None:
    journal = Journal(None)

    with pytest.raises(Misconfigured, match="1 to 65536 can be"):
        journal.open(name=NAME, slots=65_537)


FORKS = """
import os, sys
from datetime import UTC, datetime
from poisonguard.journal.in_flight_journal import Journal
NOW = datetime.now(UTC)  # what is older is forgotten
journal = Journal(sys.argv[1])
journal.open(name=sys.argv[2])
journal.attempts.mark_first_failure(b"before", now=NOW)
before = journal.path
journal.words[0] = 1
def child(number):
    if os.fork() == 0:
        assert journal.path is None
        journal.words[0] = 0
        assert journal.path is None
        journal.words[0] = number
        assert journal.path != before
        os._exit(0)
    os.wait()
child(2)
child(3)
assert journal.words[0] == 1
assert journal.path == before and before.exists()
journal.words[0] = 0
print(not journal.attempts.mark_first_failure(b"before", now=NOW))
"""


def test_a_forked_child_has_a_journal_of_its_own_from_its_first_message(
    consumers: Consumers,
) -> None:
    said = python(FORKS, consumers.folder, NAME)

    assert said == "True\n"
    journal = consumers.next_start()
    # The first child's was settled by the second one's start.
    assert [death.numbers for death in journal.deaths] == [(3,)]
    assert journal.attempts.suspects == {2, 3}
    journal.close()


def test_the_death_of_a_child_forked_by_a_handler_charges_no_message(
    consumers: Consumers,
) -> None:
    code = consumers.run(ways={"2": "fork"})

    assert code == 0
    assert consumers.noted("handled") == [1, 2, 3]


GRANDCHILD = """
import os, signal, sys, time
from poisonguard.journal.in_flight_journal import Journal
journal = Journal(sys.argv[1])
journal.open(name=sys.argv[2])
journal.words[0] = 7
grandchild = os.fork()
if grandchild == 0:
    os.close(1)
    os.close(2)
    time.sleep(600)
    os._exit(0)
print(grandchild, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_grandchild_that_lives_on_does_not_keep_its_parents_journal(
    consumers: Consumers,
) -> None:
    grandchild = int(python(GRANDCHILD, consumers.folder, NAME))

    journal = consumers.next_start()

    os.kill(grandchild, signal.SIGKILL)  # which has lived on until now
    assert [death.numbers for death in journal.deaths] == [(7,)]
    journal.close()
