"""Facts about processes from the kernel: identity, memory maps, OOM kills."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
# The files in which cgroup v2 and v1 count OOM kills.
OOM_FILES = ("memory.events", "memory.oom_control")


def is_supported() -> bool:
    """Tell whether this system provides what crash attribution needs."""
    return sys.platform == "linux" and (PROC / "self" / "stat").exists()


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A process, identified beyond its pid, which may be reused."""

    pid: int
    started: int  # clock ticks since the host booted
    boot: UUID

    @classmethod
    def own(cls) -> Self:
        """Return this process's identity: pid, start time and the host's boot id."""
        pid = os.getpid()
        return cls(pid=pid, started=start_time(pid) or 0, boot=boot())


def boot() -> UUID:
    """Return the boot id of this host."""
    return UUID((PROC / "sys/kernel/random/boot_id").read_text().strip())


def start_time(pid: int) -> int | None:
    """Return the start time of a living process; None when it does not live."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses, which may itself hold anything.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def has_mapped(pid: int, name: str, inode: int) -> bool | None:
    """Tell whether a process has this file in its memory; None when we may not know."""
    try:
        lines = (PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return None
    return any(name in line and line.split()[4] == str(inode) for line in lines)


def oom_kills() -> int:
    """Return the number of out-of-memory kills in our cgroup."""
    for folder in _memory_cgroups():
        for name in OOM_FILES:
            with suppress(OSError):
                return oom_kills_in(folder / name)
    return 0


def oom_kills_in(file: Path) -> int:
    """Read the number of OOM kills from a file of a cgroup."""
    counts = dict(line.split() for line in file.read_text().splitlines())
    return int(counts.get("oom_kill", 0))


def _memory_cgroups() -> list[Path]:
    """Return the folders that may count OOM kills of this process, the best first."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = [CGROUPS]  # inside a container, our own cgroup is the root
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders.insert(0, CGROUPS / path.lstrip("/"))
        elif "memory" in controllers.split(","):
            folders.insert(0, CGROUPS / "memory" / path.lstrip("/"))
    return folders
