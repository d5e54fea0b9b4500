from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from poisonweb.embedded import process_control
from poisonweb.embedded.supervisor import (
    LOG_BYTES,
    LONGEST_DELAY,
    MARK,
    ProcessRecord,
    recover,
    restart_delay,
)
from tests.waiting import wait_until

KEEPER = Path(__file__).with_name("product_supervisor_process.py")
ROOT = KEEPER.parents[3]


@contextmanager
def keeping(var: Path, *commands: str) -> Iterator[subprocess.Popen[str]]:
    keeper = subprocess.Popen(
        (sys.executable, str(KEEPER), str(var), *commands),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with keeper:
        assert keeper.stdout
        assert keeper.stdout.readline() == "up\n"
        (var / "up").touch()
        try:
            yield keeper
        finally:
            end(keeper)


def once_up(var: Path, command: str) -> str:
    """Run a command when the supervisor is up: a death before that is another error."""
    return f"until test -e {var}/up; do sleep 0.05; done; {command}"


def end(keeper: subprocess.Popen[str]) -> None:
    keeper.terminate()
    try:
        keeper.wait(60)
    except subprocess.TimeoutExpired:
        keeper.kill()


def leader(var: Path, name: str = "a") -> int:
    return ProcessRecord.read(var / "run" / f"{name}.pid").identity.pid


def number_in(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


def is_alive(pid: int) -> bool:
    return process_control.Identity.of(pid) is not None


def has_changed(var: Path, old: int, name: str = "a") -> bool:
    return (var / "run" / f"{name}.pid").exists() and leader(var, name) != old


def kill_and_await_its_return(var: Path, name: str) -> None:
    old = leader(var, name)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: has_changed(var, old, name))


@contextmanager
def bystander(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a group of its own from its first line on."""
    with subprocess.Popen(command, process_group=0, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process
        finally:
            process_control.kill_group(process.pid)


def note_down(var: Path, *, pid: int, started: str | None) -> None:
    identity = process_control.Identity.of(pid)
    assert identity
    noted = process_control.Identity(
        pid=pid, started=started or identity.started, boot=identity.boot
    )
    (var / "run").mkdir()
    (var / "run" / "a.pid").write_text(
        ProcessRecord(identity=noted, signal=signal.SIGTERM).to_json()
    )


def test_starts_a_killed_program_again_and_says_so(tmp_path: Path) -> None:
    with keeping(tmp_path, "exec sleep 300") as keeper:
        kill_and_await_its_return(tmp_path, "a")
        keeper.terminate()
        said = keeper.communicate()[1]

    assert said == "a ended (killed by SIGKILL); it starts again in 0.2 s\n"


def test_starts_a_program_again_that_ended_by_itself(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    with keeping(tmp_path, once_up(tmp_path, f"echo x >> {starts}")):
        wait_until(lambda: starts.exists() and len(starts.read_text().split()) >= 3)


def test_a_one_shot_that_has_done_its_work_is_not_started_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    with keeping(tmp_path, "exec sleep 300", f": once; echo x >> {starts}") as keeper:
        wait_until(lambda: not (tmp_path / "run" / "b.pid").exists())
        # It would have started again before.
        kill_and_await_its_return(tmp_path, "a")
        keeper.terminate()
        said = keeper.communicate(timeout=60)[1]

    assert (starts.read_text(), keeper.returncode) == ("x\n", 0)
    assert said == "a ended (killed by SIGKILL); it starts again in 0.2 s\n"


def test_a_one_shot_that_failed_is_started_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    fail_once = f"echo x >> {starts}; test $(wc -l < {starts}) = 2"
    twice = f": once; {once_up(tmp_path, fail_once)}"
    with keeping(tmp_path, twice, "exec sleep 300") as keeper:
        wait_until(lambda: starts.exists() and starts.read_text() == "x\nx\n")
        wait_until(lambda: not (tmp_path / "run" / "a.pid").exists())
        # A third start, after the pause of a second failure, would come before.
        for _ in range(2):
            kill_and_await_its_return(tmp_path, "b")
        keeper.terminate()
        said = keeper.communicate(timeout=60)[1]

    assert starts.read_text() == "x\nx\n"
    assert said.splitlines()[0] == "a ended (exit code 1); it starts again in 0.2 s"
    assert said.count("a ended") == 1


def test_kills_the_orphans_of_a_dead_program(tmp_path: Path) -> None:
    with keeping(tmp_path, f"sleep 300 & echo $! > {tmp_path}/orphan; wait"):
        orphan = number_in(tmp_path / "orphan")
        os.kill(leader(tmp_path), signal.SIGKILL)

        wait_until(lambda: not is_alive(orphan))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_leaves_no_process_when_asked_to_stop(
    tmp_path: Path, number: signal.Signals
) -> None:
    deaf = "trap '' TERM INT; while :; do sleep 1; done"
    # In a session of its own, with a dead parent: no group leads to it any more.
    hidden = f"(setsid sh -c 'echo $$ > {tmp_path}/hidden; exec sleep 300' &); {deaf}"
    with keeping(tmp_path, "exec sleep 300", hidden) as keeper:
        pids = [leader(tmp_path), leader(tmp_path, "b"), number_in(tmp_path / "hidden")]
        keeper.send_signal(number)
        code = keeper.wait(60)

    assert (code, [is_alive(pid) for pid in pids]) == (0, [False] * 3)
    assert not list((tmp_path / "run").iterdir())


def test_programs_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    with keeping(tmp_path, "exec sleep 300") as keeper:
        program = leader(tmp_path)
        keeper.kill()

        wait_until(lambda: not is_alive(program))


def test_recovers_from_a_killed_supervisor(tmp_path: Path) -> None:
    deaf = f"trap '' TERM; sleep 300 & echo $! > {tmp_path}/orphan; wait; sleep 300"
    with keeping(tmp_path, deaf) as keeper:
        program, orphan = leader(tmp_path), number_in(tmp_path / "orphan")
        keeper.kill()

    recover(tmp_path, seconds=0.2)

    wait_until(lambda: not is_alive(program) and not is_alive(orphan))
    assert not list((tmp_path / "run").iterdir())


def test_recovers_orphans_whose_leader_is_gone(tmp_path: Path) -> None:
    with keeping(tmp_path, f"sleep 300 & echo $! > {tmp_path}/orphan; wait") as keeper:
        orphan = number_in(tmp_path / "orphan")
        keeper.kill()
    wait_until(lambda: not is_alive(leader(tmp_path)))

    recover(tmp_path)

    wait_until(lambda: not is_alive(orphan))


def test_recovers_what_went_to_a_session_of_its_own(tmp_path: Path) -> None:
    away = f"setsid sh -c 'echo $$ > {tmp_path}/away; exec sleep 300' & exec sleep 300"
    with keeping(tmp_path, away) as keeper:
        hidden = number_in(tmp_path / "away")
        keeper.kill()

    recover(tmp_path)

    wait_until(lambda: not is_alive(hidden))


def test_recovers_in_a_folder_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    var = tmp_path / os.fsdecode(b"f\xfcr")
    command = ("env", f"{MARK}={var}", "sh", "-c", "echo; exec sleep 300")
    with bystander(*command) as orphan:
        recover(var)

        assert orphan.wait(60) == -signal.SIGKILL


def test_recovery_spares_what_only_works_on_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    folder = f"POISONWEB_VAR={tmp_path}"
    with bystander("env", folder, "sh", "-c", "echo; exec sleep 300") as terminal:
        recover(tmp_path)

        assert is_alive(terminal.pid)


def test_recovery_kills_a_server_that_does_not_stop(tmp_path: Path) -> None:
    deaf = ("sh", "-c", "trap '' TERM; echo; while :; do sleep 1; done")
    with bystander(*deaf) as server:
        note_down(tmp_path, started=None, pid=server.pid)

        recover(tmp_path, seconds=0.2)

        assert server.wait(60) == -signal.SIGKILL


def test_recovery_spares_a_process_that_has_only_the_number(tmp_path: Path) -> None:
    with bystander("sh", "-c", "echo; exec sleep 300") as stranger:
        note_down(tmp_path, started="1", pid=stranger.pid)

        recover(tmp_path)

        assert is_alive(stranger.pid)


def test_waits_longer_after_every_death_up_to_a_limit() -> None:
    waits = [restart_delay(deaths) for deaths in range(1, 12)]

    assert waits[:3] == [0.2, 0.4, 0.8]
    assert waits[-1] == LONGEST_DELAY


def test_a_death_at_the_start_is_told_with_the_programs_last_words(
    tmp_path: Path,
) -> None:
    (tmp_path / "hold").touch()

    keeper = subprocess.run(
        (sys.executable, str(KEEPER), str(tmp_path), "echo no such table >&2; exit 3"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert "CannotStart: a did not start: no such table" in keeper.stderr


def test_a_log_that_grew_too_big_begins_again(tmp_path: Path) -> None:
    log = tmp_path / "log" / "a.log"
    until_empty = f"while test -s {log}; do sleep 0.05; done"
    flood = f"head -c {LOG_BYTES + 1} /dev/zero; {until_empty}; echo later"
    with keeping(tmp_path, f"{flood}; exec sleep 300"):
        wait_until(lambda: log.read_bytes() == b"later\n")

    assert log.with_suffix(".log.1").stat().st_size == LOG_BYTES + 1
