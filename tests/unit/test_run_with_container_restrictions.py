"""What `tests.run_with_container_restrictions` forbids, and what still works there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import run_with_container_restrictions

ROOT = Path(__file__).parents[2]


def inside(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "tests.run_with_container_restrictions", *command),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["--user", "--mount", "--pid", "--net"])
def test_no_namespace_can_be_made(kind: str) -> None:
    done = inside("unshare", kind, "true")

    assert (done.returncode, done.stdout) == (1, "")
    assert "Operation not permitted" in done.stderr


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        ("clone, NEW_USER | SIGCHLD", errno.EPERM),
        ("clone3, None, 0", errno.ENOSYS),
        ("setns, -1, 0", errno.EPERM),
        ("mount, None, None, None, 0, None", errno.EPERM),
        ("umount2, None, 0", errno.EPERM),
    ],
)
def test_no_other_call_leads_there(call: str, refusal: int) -> None:
    lines = (
        "import ctypes",
        "clone, clone3, setns, mount, umount2 = 56, 435, 308, 165, 166",
        "NEW_USER, SIGCHLD = 0x10000000, 17",
        "libc = ctypes.CDLL(None, use_errno=True)",
        f"print(libc.syscall({call}), ctypes.get_errno())",
    )

    done = inside(sys.executable, "-c", "\n".join(lines))

    assert done.stdout == f"-1 {refusal}\n"


def test_processes_and_threads_start_as_everywhere() -> None:
    start = "import threading as t; a = t.Thread(target=print, args=(7,)); a.start()"

    done = inside("sh", "-c", '"$0" -c "$1"; exit 3', sys.executable, start)

    assert (done.returncode, done.stdout, done.stderr) == (3, "7\n", "")


def test_nothing_that_is_forbidden_can_be_had_back() -> None:
    done = inside("setpriv", "--dump")

    limits = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    capabilities = set(limits["Capability bounding set"].split(","))
    assert limits["no_new_privs"] == "1"
    assert os.geteuid() != 0 or capabilities == set(
        run_with_container_restrictions.CAPABILITIES
    )
