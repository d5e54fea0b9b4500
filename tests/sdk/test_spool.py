from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from poisonguard.errors import Full, Misconfigured
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import BATCH_RECORDS, Spool
from tests.sdk.failure_report_builder import failure
from tests.sdk.fake_poisonweb_server import KEY, FakeServer

ROOT = Path(__file__).parents[2]
SOAK = bool(os.environ.get("SOAK"))


def sent_items(folder: Path) -> list[dict[str, Any]]:
    """Return what the next process finds, and confirm it."""
    spool, items = Spool(folder), list[dict[str, Any]]()
    spool.adopt()
    while batch := spool.batch():
        items += [dict(item) for item in batch.items]
        spool.confirm_batch(batch)
    spool.close()
    return items


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.spool"))


def descriptors(folder: Path) -> int:
    """Count the files of a folder that this process has open."""
    opened = list[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread may have closed it
            opened.append(str(descriptor.readlink()))
    return sum(path.startswith(f"{folder}/") for path in opened)


def test_batches_are_in_order_and_of_one_kind(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for kind, number in [("failures", 1), ("failures", 2), ("confirmations", 3)]:
        spool.append(kind, {"n": number}, durable=True)

    first = spool.batch()
    assert first is not None
    again = spool.batch()
    spool.confirm_batch(first)
    second = spool.batch()

    assert (first.kind, first.items) == ("failures", ({"n": 1}, {"n": 2}))
    assert again == first
    assert second is not None
    assert (second.kind, second.items) == ("confirmations", ({"n": 3},))
    assert (spool.failures, spool.waiting) == (0, 1)


def test_unsent_records_are_found_by_the_next_process(tmp_path: Path) -> None:
    report = failure(body=b"\xff\x00", bookmark="\ud800 lone").to_wire()
    before = Spool(tmp_path)
    before.append("failures", report, durable=True)
    before.close()

    after = Spool(tmp_path)

    assert after.adopt() == 1
    assert after.failures == 1
    batch = after.batch()
    assert batch is not None
    assert batch.items == (report,)


def test_sent_records_leave_no_file_behind(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(2 * BATCH_RECORDS + 1):
        spool.append("failures", {"n": number}, durable=False)
    sizes = []
    while batch := spool.batch():
        sizes.append(len(batch.items))
        spool.confirm_batch(batch)
    spool.close()

    assert sizes == [BATCH_RECORDS, BATCH_RECORDS, 1]
    assert sent_items(tmp_path) == []
    assert segments(tmp_path) == []


def test_a_segment_that_is_long_enough_is_followed_by_another(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_limit=200)
    for number in range(20):
        spool.append("failures", {"n": number}, durable=False)
    files = len(segments(tmp_path))
    spool.close()

    assert files == 3
    assert [item["n"] for item in sent_items(tmp_path)] == list(range(20))


def test_a_segment_of_a_living_spool_is_not_taken_over(tmp_path: Path) -> None:
    mine = Spool(tmp_path)
    mine.append("failures", {"n": 1}, durable=True)

    here = Spool(tmp_path).adopt()
    there = adopted_by_another_process(tmp_path)
    mine.append("failures", {"n": 2}, durable=True)
    mine.close()

    assert (here, there) == (0, 0)
    assert adopted_by_another_process(tmp_path) == 1


def adopted_by_another_process(folder: Path) -> int:
    code = (
        "import sys; from pathlib import Path;"
        "from poisonguard.server.spool import Spool;"
        "print(Spool(Path(sys.argv[1])).adopt())"
    )
    return int(
        subprocess.run(
            [sys.executable, "-c", code, folder],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
            check=True,
            capture_output=True,
        ).stdout
    )


@pytest.mark.parametrize("lost", [1, 5, 9, 20, 29])
def test_a_torn_end_loses_only_the_record_that_was_torn(
    lost: int, tmp_path: Path
) -> None:
    spool = Spool(tmp_path)
    spool.append("failures", {"n": 1}, durable=True)
    spool.append("failures", {"n": 2, "x": "x"}, durable=True)
    spool.close()
    (segment,) = segments(tmp_path)
    os.truncate(segment, segment.stat().st_size - lost)

    items = sent_items(tmp_path)

    assert [item["n"] for item in items] == [1]
    assert segments(tmp_path) == []
    assert [file.name for file in (tmp_path / "damaged").iterdir()] == [segment.name]


@pytest.mark.parametrize("at", [0, 4, 10, -1])
def test_a_record_that_the_disk_has_changed_is_not_sent(
    at: int, tmp_path: Path
) -> None:
    spool = Spool(tmp_path)
    spool.append("failures", {"n": 1}, durable=True)
    spool.close()
    (segment,) = segments(tmp_path)
    data = bytearray(segment.read_bytes())
    data[at] ^= 0x40
    segment.write_bytes(data)

    assert sent_items(tmp_path) == []
    assert Spool(tmp_path).damaged == 1


def test_zeros_that_a_power_cut_left_are_an_end(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append("failures", {"n": 1}, durable=True)
    spool.close()
    with segments(tmp_path)[0].open("ab") as file:
        file.write(bytes(4_096))

    assert sent_items(tmp_path) == [{"n": 1}]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Limit the room on the disk to so many bytes."""
    room, write = [10**9], os.write

    def limited(descriptor: int, data: memoryview) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    return room


def test_a_full_disk_raises_full_and_keeps_no_half_records(
    tmp_path: Path, full_disk: list[int]
) -> None:
    spool = Spool(tmp_path)
    spool.append("failures", {"n": 1}, durable=True)
    full_disk[0] = 13

    with pytest.raises(Full, match="make room"):
        spool.append("failures", {"n": 2}, durable=True)

    full_disk[0] = 10**9
    spool.append("failures", {"n": 3}, durable=True)
    assert spool.failures == 2
    spool.close()
    assert [item["n"] for item in sent_items(tmp_path)] == [1, 3]
    assert Spool(tmp_path).damaged == 0


def test_a_record_that_could_not_be_synced_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.append("failures", {"n": 1}, durable=True)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(Full, match="Input/output"):
            spool.append("failures", {"n": 2}, durable=True)
    spool.append("failures", {"n": 3}, durable=True)
    files = len(segments(tmp_path))
    spool.close()

    assert files == 2  # the end of the first one on the disk is unknown
    assert sent_items(tmp_path) == [{"n": 1}, {"n": 3}]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_stays_full_costs_no_descriptors(
    call: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    for number in range(before):
        spool.append("failures", {"n": number}, durable=True)
    opened = descriptors(tmp_path)

    def broken(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, broken)
        for _ in range(20):
            with pytest.raises(Full):
                spool.append("failures", {"n": 7}, durable=True)
    counts = descriptors(tmp_path), len(segments(tmp_path))
    spool.append("failures", {"n": 8}, durable=True)
    spool.close()

    assert counts == (opened, before)
    assert [item["n"] for item in sent_items(tmp_path)] == [*range(before), 8]


def test_a_folder_that_cannot_be_created_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Misconfigured, match="name one"):
        Spool(tmp_path / "file" / "spool")


def test_a_removed_folder_is_created_again(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    spool = Spool(folder)
    spool.append("failures", {"n": 1}, durable=True)
    shutil.rmtree(folder)

    spool.append("failures", {"n": 2}, durable=True)

    spool.close()
    assert sent_items(folder) == [{"n": 2}]


def test_a_rejected_record_is_stored_once_with_the_reason(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for _ in range(2):
        spool.set_aside("failures", {"n": 1}, "oversize")

    (file,) = spool.rejected_folder.iterdir()
    assert json.loads(file.read_text()) == {
        "rejected": "oversize",
        "failures": {"n": 1},
    }
    assert spool.rejected == 1
    assert file.stat().st_mode & 0o077 == 0


def test_threads_write_whole_records(tmp_path: Path) -> None:
    spool = Spool(tmp_path)

    def write(first: int) -> None:
        for number in range(first, first + 50):
            spool.append("failures", {"n": number, "x": "x" * number}, durable=False)

    threads = [threading.Thread(target=write, args=[n * 50]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spool.close()

    assert sorted(item["n"] for item in sent_items(tmp_path)) == list(range(200))


def test_a_forked_child_leaves_the_segments_to_its_parent(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append("failures", {"n": 1}, durable=True)
    child = os.fork()
    if child == 0:
        spool.reset_after_fork()
        spool.append("failures", {"n": 2}, durable=True)
        os._exit(spool.adopt() + 10 * spool.failures)

    _, status = os.waitpid(child, 0)
    spool.append("failures", {"n": 3}, durable=True)

    assert os.waitstatus_to_exitcode(status) == 10
    assert (spool.adopt(), spool.failures) == (1, 3)


@pytest.mark.parametrize("body_size", [10, 200_000])
def test_a_process_killed_at_any_moment_loses_no_acknowledged_record(
    body_size: int, server: FakeServer, tmp_path: Path
) -> None:
    server.stop()
    promised = set[str]()
    for _ in range(200 if SOAK else 6):
        promised |= _killed(server.url, tmp_path, body_size)
    server.start()

    reporter = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    reporter.start()

    server.until(
        lambda: promised <= {*server.reports.failures, *server.reports.confirmations}
    )
    assert len(promised) > 6
    reporter.close(60)
    assert reporter.spooled == 0


def test_a_process_killed_while_it_drains_loses_nothing(
    server: FakeServer, tmp_path: Path
) -> None:
    server.stop()
    promised = _killed(server.url, tmp_path, 10, lives=1.0)
    server.start()
    for _ in range(3):
        promised |= _killed(server.url, tmp_path, 10)

    reporter = Reporter(Client([server.url], KEY), spool=Spool(tmp_path))
    reporter.start()

    server.until(
        lambda: promised <= {*server.reports.failures, *server.reports.confirmations}
    )
    reporter.close(60)
    assert segments(tmp_path) == []


def _killed(
    url: str, folder: Path, body_size: int, lives: float | None = None
) -> set[str]:
    """Run a consumer, kill it, and return what it acknowledged."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.sdk.spooling_consumer",
            url,
            folder,
            str(body_size),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    threading.Event().wait(lives or random.uniform(0, 0.3))
    process.kill()
    # A line that is not whole was not said.
    said = [first, *process.stdout.read().splitlines(keepends=True)]
    process.stdout.close()
    process.wait()
    return {line.strip() for line in said if line.endswith("\n")}
