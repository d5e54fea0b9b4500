"""Run a command at another time: `python -m tests.clock '2026-12-31 23:58' COMMAND`.

The command and all that it starts see that moment of UTC, from which time goes on; the
clock of the machine stays as it is.

The usual tool, libfaketime, keeps two files in /dev/shm for each process, which a kill
leaves there until another process of the same pid fails over them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

SOURCE = Path(__file__).with_name("shift.c")
FOLDER = Path(sys.prefix) / "clock"
LIBRARY, SETPRIV = FOLDER / "shift.so", FOLDER / "setpriv"
# Our Postgres and Redis are started with an environment of their own, through the first
# `setpriv` of the path: this one gives back what shifts the clock.
SCRIPT = """#!/bin/sh
export {settings}
exec {setpriv} "$@"
"""


def command(start: str, words: Sequence[str]) -> list[str]:
    """Give the command that runs `words` from `start` on.

    Each process gets the distance to the real clock, so that all agree on the time.
    """
    moment = datetime.fromisoformat(start).replace(tzinfo=UTC)
    distance = (moment - datetime.now(UTC)).total_seconds()
    settings = {"LD_PRELOAD": str(LIBRARY), "CLOCK_SHIFT": f"{distance:.0f}"}
    _prepare(_words(settings))
    path = f"{FOLDER}:{os.environ['PATH']}"
    return ["env", *_words({**settings, "PATH": path}), *words]


def _words(settings: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def _prepare(settings: Sequence[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    new = LIBRARY.with_suffix(".new")
    subprocess.run(("cc", "-shared", "-fPIC", "-O2", "-o", new, SOURCE), check=True)
    new.replace(LIBRARY)
    real = shutil.which("setpriv")
    assert real, "setpriv is missing: apt-get install util-linux"
    SETPRIV.write_text(SCRIPT.format(settings=shlex.join(settings), setpriv=real))
    SETPRIV.chmod(0o755)


def main(words: Sequence[str]) -> None:
    start, *rest = words
    shifted = command(start, rest)
    os.execvp(shifted[0], shifted)
