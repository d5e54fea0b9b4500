"""A supervisor of its own process: `product_supervisor_process.py <var> <command>...`.

The programs are named a, b, c ...; it says `up` when they run. None is ready while
there is a file `hold`. A command that begins with `: once;` is a one-shot.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from string import ascii_lowercase

from poisonweb.embedded.process_control import Program
from poisonweb.embedded.supervisor import Supervisor


def main(folder: str, *commands: str) -> None:
    logging.basicConfig(format="%(message)s")
    var = Path(folder)
    keeper = Supervisor(root=var, var=var)
    programs = [
        Program(
            name=name,
            command=("sh", "-c", command),
            environment=os.environ,
            grace=1,
            once=command.startswith(": once;"),
            ready=lambda _: not (var / "hold").exists(),
        )
        for name, command in zip(ascii_lowercase, commands, strict=False)
    ]
    try:
        keeper.start(programs)
        keeper.until_ready(seconds=60)
        sys.stdout.write("up\n")
        sys.stdout.flush()
        keeper.supervise()
    finally:
        keeper.stop()


main(*sys.argv[1:])
