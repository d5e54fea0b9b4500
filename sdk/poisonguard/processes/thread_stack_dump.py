"""Stacks of the threads of a process, written to a file before it is killed.

Each process has one file, beside its journals. Under a supervisor, `SIGNAL` has it
written in C, without the interpreter, so also while a handler holds the GIL.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import TextIO

from poisonguard.processes.kernel_process_facts import Identity

SIGNAL = signal.SIGUSR2
SUPERVISOR_VARIABLE = "POISONGUARD_SUPERVISOR"
LIMIT = 16_384

# The file that SIGNAL writes to, by pid: a forked child has its own.
_registered: dict[int, TextIO] = {}


def stack_file(folder: Path, owner: Identity) -> Path:
    """Return the path of the file for the thread stacks of a process."""
    return folder / f"{owner.pid}-{owner.started}.stacks"


def listen(folder: Path, owner: Identity) -> None:
    """Let a supervisor ask for thread stacks, unless the application has the signal."""
    supervised = SUPERVISOR_VARIABLE in os.environ
    if not supervised or owner.pid in _registered:
        return
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    target = stack_file(folder, owner).open("w", encoding="utf-8")
    faulthandler.register(SIGNAL, file=target, all_threads=True)
    _registered.clear()
    _registered[owner.pid] = target


def unlisten(folder: Path, owner: Identity) -> None:
    """Stop writing thread stacks on the signal, and delete the file."""
    target = _registered.pop(owner.pid, None)
    if target is not None:
        faulthandler.unregister(SIGNAL)
        target.close()
        stack_file(folder, owner).unlink(missing_ok=True)


def dump(folder: Path | None, owner: Identity) -> None:
    """Write all threads' stacks to stderr and, given a folder, to a file."""
    faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
    if folder is not None:
        with stack_file(folder, owner).open("w", encoding="utf-8") as target:
            faulthandler.dump_traceback(file=target, all_threads=True)


def read(folder: Path, owner: Identity) -> str:
    """Return the thread stacks that a process wrote, "" when there are none."""
    try:
        with stack_file(folder, owner).open(
            encoding="utf-8", errors="replace"
        ) as source:
            return source.read(LIMIT)
    except FileNotFoundError:
        return ""


def remove(folder: Path, owner: Identity) -> None:
    """Delete the file with the thread stacks of a process, if there is one."""
    stack_file(folder, owner).unlink(missing_ok=True)
