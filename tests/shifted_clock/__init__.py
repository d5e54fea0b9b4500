"""Run a command at another time: `python -m tests.shifted_clock TIME COMMAND`.

The command and all that it starts see that moment of UTC, such as '2026-12-31 23:58',
from which time goes on; the clock of the machine stays as it is.

The usual tool, libfaketime, keeps two files in /dev/shm for each process, which a kill
leaves there until another process of the same pid fails over them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_shift_preload.c")
FOLDER = Path(sys.prefix) / "clock"
LIBRARY, SETPRIV = FOLDER / "clock-shift.so", FOLDER / "setpriv"
# By its name, which the loader looks up in the folder: a path with a space in it would
# be taken for two libraries.
PRELOAD = (f"LD_PRELOAD={LIBRARY.name}", f"LD_LIBRARY_PATH={FOLDER}")
# Our Postgres and Redis are started through the first `setpriv` of the path, with an
# environment of their own that keeps only the path. Its first folder, which does not
# exist, is named by the shift, so that this `setpriv`, which others use meanwhile for
# another time, can set the clock again.
SCRIPT = """#!/bin/sh
shift_folder=${{PATH%%:*}}
export CLOCK_SHIFT="${{shift_folder##*/}}" {preload}
exec {setpriv} "$@"
"""


def command(start: str, words: Sequence[str]) -> list[str]:
    """Give the command that runs `words`, and for which it is `start` at this moment.

    Each process gets the distance to the real clock, so that all agree on the time.
    """
    moment = datetime.fromisoformat(start).replace(tzinfo=UTC)
    ours = int(os.environ.get("CLOCK_SHIFT", "0"))
    distance = f"{(moment - datetime.now(UTC)).total_seconds() + ours:.0f}"
    _prepare()
    path = f"{FOLDER / distance}:{FOLDER}:{os.environ['PATH']}"
    return ["env", *PRELOAD, f"CLOCK_SHIFT={distance}", f"PATH={path}", *words]


def _prepare() -> None:
    FOLDER.mkdir(exist_ok=True)
    # Under another clock, our folder is in the path already, maybe by another name; a
    # `setpriv` that called the one there would call itself without end.
    ours = FOLDER.resolve()
    folders = os.environ["PATH"].split(":")
    path = ":".join(folder for folder in folders if Path(folder).resolve() != ours)
    real = shutil.which("setpriv", path=path)
    assert real, "setpriv is missing: apt-get install util-linux"
    with _replacing(LIBRARY) as new:
        subprocess.run(("cc", "-shared", "-fPIC", "-O2", "-o", new, SOURCE), check=True)
    with _replacing(SETPRIV) as new:
        preload = shlex.join(PRELOAD)
        new.write_text(SCRIPT.format(preload=preload, setpriv=shlex.quote(real)))


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Give a path to write to; the executable there replaces `target` in one step.

    Others may prepare the same at this moment, or run it.
    """
    new = target.with_suffix(f".{os.getpid()}")
    yield new
    new.chmod(0o755)
    new.replace(target)


def main(words: Sequence[str]) -> None:
    start, *rest = words
    shifted = command(start, rest)
    os.execvp(shifted[0], shifted)
