"""The whole product, started as a newcomer starts it, in a copy of this tree."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import cache_from_source
from pathlib import Path
from urllib.request import urlopen

from poisonweb.embedded import process_control
from poisonweb.embedded.free_ports import free_port
from poisonweb.embedded.supervisor import ProcessRecord
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ".venv/bin/python"
PORTS = ("PORT", "GATEWAY_PORT")
START = (PYTHON, "-m", "poisonweb.embedded")
# Shells, Java, Spark and Postgres read such names of folders in their ways.
ODD_NAME = """an "odd" clone, it's für $HOME & 100%"""
# Until a start, a refusal or an end is waited for no more: no busy machine reaches it.
PATIENCE = 300
# Python runs it first where PYTHONPATH leads there: a folder has a small disk.
SMALL_DISK = """
import os

statvfs = os.statvfs


def with_little_room(path):
    answer = statvfs(path)
    if isinstance(path, int) or not os.fspath(path).startswith({folder!r}):
        return answer
    fields = list(answer)
    fields[3] = fields[4] = 64 * 2**20 // answer.f_frsize - 1
    return os.statvfs_result(fields)


os.statvfs = with_little_room
"""


def copy_of_tree(target: Path) -> Path:
    """Copy the files that git tracks or would, so that uncommitted work is tested."""
    for name in _listed():
        _copy(name, target)
    return target


def clone(target: Path) -> Path:
    """Copy the tree and lend it our packages, so that it can start at once.

    Python believes what it has compiled of the same file, wherever that was.
    """
    tree = copy_of_tree(target)
    for name in _listed():
        if name.endswith(".py"):
            _copy(cache_from_source(name), tree)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def _listed() -> list[str]:
    listing = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
    return listed.stdout.decode().split("\0")[:-1]


def _copy(name: str, target: Path) -> None:
    if (ROOT / name).exists():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)


def environment(**changes: str) -> dict[str, str]:
    """Return our environment without variables that lead to other servers."""
    ours = ("DATABASE_URL", "CELERY_BROKER_URL", *PORTS, "MAKEFLAGS", "MAKELEVEL")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(("POISONWEB_", "DJANGO_"))
    }
    return {**inherited, **changes}


@dataclass(kw_only=True)
class Product:
    process: subprocess.Popen[str]
    var: Path
    port: int
    ready_line: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def tree(self) -> Path:
        return self.var.parent

    @property
    def password(self) -> str:
        """The administrator's, as a start tells it to who sits before it."""
        return self.ready_line.rsplit(maxsplit=1)[-1]

    def pid(self, name: str) -> int:
        """Wait until a program of the product runs; return its process id."""
        return wait_until(partial(self._pid, name))

    def _pid(self, name: str) -> int:
        with suppress(FileNotFoundError):
            return ProcessRecord.read(self.var / "run" / f"{name}.pid").identity.pid
        return 0

    def is_ready(self) -> bool:
        with suppress(OSError), urlopen(f"{self.url}/readyz", timeout=60) as answer:
            return bool(answer.status == 200)
        return False

    def said(self) -> str:
        return (self.var / "log" / "supervisor.log").read_text()

    def await_ready_line(self) -> None:
        assert self.process.stdout
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert readable, "no line in time"
        self.ready_line = self.process.stdout.readline()
        assert self.ready_line, "it ended: see its messages above"


@contextmanager
def started(
    tree: Path, *command: str, changes: Mapping[str, str] | None = None
) -> Iterator[Product]:
    """Start the product in `tree`, wait for its ready line, and stop it at last."""
    port = free_port()
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment(
            PORT=str(port), GATEWAY_PORT=str(free_port()), **(changes or {})
        ),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    product = Product(process=process, var=tree / "var", port=port)
    try:
        product.await_ready_line()
        yield product
    finally:
        end(product)


def refused(tree: Path, *command: str, changes: Mapping[str, str] | None = None) -> str:
    """Start the product where it cannot start; return the one line that it prints."""
    # Another instance may serve at the usual port while we test.
    changes = {**{name: str(free_port()) for name in PORTS}, **(changes or {})}
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("make: ")]
    assert (bool(done.returncode), done.stdout, len(said)) == (True, "", 1), done.stderr
    return said[0]


def on_small_disk(folder: Path, *, shim: Path) -> dict[str, str]:
    """Make what is started believe that the disk of `folder` has 63 MiB left.

    To give it a disk that small takes rights that not everybody has everywhere.
    """
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(SMALL_DISK.format(folder=str(folder)))
    return {"PYTHONPATH": str(shim)}


def end(product: Product) -> None:
    """Press Ctrl-C on the product, as a terminal does to the foreground group."""
    with suppress(ProcessLookupError):
        os.killpg(product.process.pid, signal.SIGINT)
    with product.process:
        product.process.wait(PATIENCE)


def processes_of(var: Path) -> set[int]:
    """Return every process that names `var`, or works in it."""
    return {pid for pid in process_control.all_pids() if _names(pid, str(var))}


def _names(pid: int, var: str) -> bool:
    entry = process_control.PROC / str(pid)
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        if pid == os.getpid() or process_control.Identity.of(pid) is None:
            return False
        # The command line first: in a container, root may read no more of Postgres.
        for file in ("cmdline", "environ"):
            if var.encode() in (entry / file).read_bytes():
                return True
        return str((entry / "cwd").readlink()).startswith(var)
    return False
